"""Tables of the experiments of ETO's paper."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.common.report import markdown_table
from benchmarks.common.result_store import ResultStore
from benchmarks.paper_eto.operator_sets import vectors_of
from tilewright.optimize.reuse.arborescence import total_cost
from tilewright.optimize.reuse.reuse_graph import ROOT, BridgeChoice, reuse_graph
from tilewright.optimize.reuse.selective_tuning import clusters

MAX_BRIDGES_ALL = 120
"""Bridges up to which the graph with all of them is solved."""

WHERE = ("machine", "date", "commit")
"""What is told of where a set was tuned: sets are tuned on different machines, of different sources."""


def graph_row(name: str) -> dict[str, Any]:
    """Numbers of a set's graphs, and the costs of their trees with full searches of 1,000 programs."""
    vectors = vectors_of(name)
    row: dict[str, Any] = {"operators": len(vectors), "clusters": len(clusters(vectors))}
    for choice in BridgeChoice:
        if choice is BridgeChoice.ALL and row["one hop"]["bridges"] > MAX_BRIDGES_ALL:
            continue
        graph = reuse_graph(vectors, choice)
        tree = graph.tree()
        row[choice.value] = {
            "bridges": len(graph.bridges),
            "pairs": len(graph.costs) - len(graph.nodes),
            "cost": round(total_cost(graph.costs, tree)),
            "full": sum(tail == ROOT for tail, _ in tree),
        }
    return row


def markdown(store: ResultStore) -> str:
    """All tables."""
    parts: list[str] = []
    if graphs := store.all("graphs"):
        header = ["set", "operators", "clusters", "pairs", "cost", "full searches", "bridges", "pairs with bridges",
                  "cost with bridges", "full searches with bridges", "cost with all bridges"]  # fmt: skip
        rows = [_graph_cells(name, r) for name, r in graphs.items()]
        parts.append("Graphs of reuse, costs in measured programs with full searches of 1,000:\n")
        parts.append(markdown_table(header, rows))
    if tuned := store.all("tune"):
        header = ["set", "method", "programs", "estimated", "full searches", "seconds", "faster", "throughput",
                  "per operator"]  # fmt: skip
        full = {r["set"]: r["seconds"] for r in tuned.values() if r["method"] == "full search"}
        rows = [_tune_cells(r, full.get(r["set"])) for r in tuned.values()]
        parts.append("\nTuning on one thread; throughput relative to the full search:\n")
        parts.append(markdown_table(header, rows))
        parts.append("\nWhere they were tuned:\n")
        parts.append(markdown_table(["set", *WHERE], _tuning_places(list(tuned.values()))))
    return "\n".join(parts)


def _graph_cells(name: str, row: dict[str, Any]) -> list[str]:
    none, one, every = row["none"], row["one hop"], row.get("all")
    numbers = [row["operators"], row["clusters"], none["pairs"], none["cost"], none["full"], one["bridges"],
               one["pairs"], one["cost"], one["full"]]  # fmt: skip
    return [name, *(f"{n:,}" for n in numbers), "" if every is None else f"{every['cost']:,}"]


def _tuning_places(tuned: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Per set the places where its results were measured."""
    places = dict.fromkeys((r["set"], *(r.get("where", {}).get(k, "") for k in WHERE)) for r in tuned)
    return [list(place) for place in places]


def _tune_cells(row: dict[str, Any], full_seconds: float | None) -> list[str]:
    faster = "" if full_seconds is None or not row["seconds"] else f"{full_seconds / row['seconds']:.1f} times"
    ratios = ", ".join("-" if r is None else f"{r:.2f}" for r in row["ratios"])
    throughput = "" if row["throughput"] is None else f"{row['throughput']:.3f}"
    return [
        row["set"], row["method"], str(row["programs"]), f"{row['estimated']:.0f}", str(row["full_searches"]),
        f"{row['seconds']:.0f}", faster, throughput, ratios,
    ]  # fmt: skip
