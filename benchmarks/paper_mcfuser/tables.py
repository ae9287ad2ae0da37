"""Tables of the experiments."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.common import plots, report
from benchmarks.common.result_store import ResultStore
from benchmarks.common.sources import source_hash
from benchmarks.common.statistics import geometric_mean, rank_correlation

MAX_FOOTPRINT_ERROR = 0.2
"""How far the estimated bytes may be from those of the stack to count as right: the margin of rule 4."""

PartResults = dict[str, dict[str, Any]]


def markdown(store: ResultStore) -> str:
    """All tables."""
    sections: list[str] = []
    for part, (title, table) in _TABLES.items():
        results = dict(store.all(part))
        if results:
            facts = [f"- {k}: {v}" for k, v in store.all("circumstances").get(part, {}).items()]
            old = sum(r["source"] != source_hash() for r in results.values())
            facts += [f"- **{old} of {len(results)} results are of older sources**"] if old else []
            sections.append(f"### {title}\n\n" + "\n".join(facts) + f"\n\n{table(results)}")
    return "\n\n".join(sections)


def write(store: ResultStore) -> None:
    """Puts the tables into the README and draws the picture."""
    report.write_section("paper_mcfuser", markdown(store))
    results = store.all("model")
    if results:
        groups = {name: [(c["model"] / 1e3, c["ns"] / 1e3) for c in r["candidates"]] for name, r in results.items()}
        plots.save("paper_mcfuser", plots.scatter("Candidates", "model, us", "measured, us", groups))


def _pruning_table(results: PartResults) -> str:
    steps = [name for name, _ in next(iter(results.values()))["waterfall"]]
    rows = [
        [name, " -> ".join(map(str, r["expressions"])), *(f"{count:,}" for _, count in r["waterfall"]),
         f"{r['seconds'] * 1e3:.0f}"]
        for name, r in results.items()
    ]  # fmt: skip
    return report.markdown_table(["machine, space", "expressions", *steps, "ms"], rows)


def _search_table(results: PartResults) -> str:
    header = ["workload, space", "model alone, s", "estimated", "trees, s", "trees", "measured, s", "kernels",
              "chosen by the model", "by trees", "by measuring", "us"]  # fmt: skip
    rows: list[list[str]] = []
    for name, r in results.items():
        model, trees, measured = r["model"], r["trees"], r["measured"]
        chosen = [x["tiling"] for x in (model, trees, measured)]
        best = "" if measured["ns"] is None else f"{measured['ns'] / 1e3:.0f}"
        rows.append(
            [name, f"{model['seconds']:.2f}", str(model["estimated"]), f"{trees['seconds']:.1f}",
             str(trees["measured"]), f"{measured['seconds']:.0f}", str(measured["measured"]), *chosen, best]
        )  # fmt: skip
    return report.markdown_table(header, rows)


def _model_table(results: PartResults) -> str:
    header = ["workload", "candidates", "refused", "rank correlation", "correlation", "rank correlation of trees",
              "chosen / best", "by trees", "best of 8", "measured twice", "footprint within 20 %"]  # fmt: skip
    table = report.markdown_table(header, [[name, *_model_row(r)] for name, r in results.items()])
    return f"{table}\n\n![model and measured times](results/paper_mcfuser.svg)"


def _model_row(result: dict[str, Any]) -> Sequence[str]:
    rows = result["candidates"]
    measured, model, trees = (np.array([c[x] for c in rows], dtype=float) for x in ("ns", "model", "trees"))
    best = measured.min()
    repeated = [(c["ns"], c["again"]) for c in rows if c["again"] is not None]
    off = [abs(c["estimated bytes"] / max(1, c["stack bytes"]) - 1) <= MAX_FOOTPRINT_ERROR for c in rows]
    eight = measured[np.argsort(model, kind="stable")[:8]].min()
    return [
        str(result["drawn"]), str(result["refused"]),
        f"{rank_correlation(list(model), list(measured)):.2f}", f"{np.corrcoef(model, measured)[0, 1]:.2f}",
        f"{rank_correlation(list(trees), list(measured)):.2f}",
        f"{measured[int(np.argmin(model))] / best:.2f}", f"{measured[int(np.argmin(trees))] / best:.2f}",
        f"{eight / best:.2f}", f"{max(max(a / b, b / a) for a, b in repeated):.2f}", f"{np.mean(off):.0%}",
    ]  # fmt: skip


def _kernels_table(results: PartResults) -> str:
    rows: list[list[str]] = []
    ratios: dict[str, list[float]] = {"mcfuser": [], "chimera": []}
    for name, r in results.items():
        speeds: list[str] = []
        for variant, known in ratios.items():
            if r[variant] is not None:
                known.append(r["unfused"] / r[variant])
            speeds.append("" if r[variant] is None else f"{known[-1]:.2f}")
        times = [f"{r[x] / 1e3:.0f}" if r[x] is not None else "none" for x in ("mcfuser", "chimera", "unfused")]
        rate = "" if r["mcfuser"] is None else f"{r['flops'] / r['mcfuser']:.0f}"
        rows.append([name, *times, *speeds, rate])
    means = [f"{geometric_mean(known):.2f}" if known else "" for known in ratios.values()]
    rows.append(["geometric mean", "", "", "", *means, ""])
    header = ["workload", "mcfuser us", "chimera us", "unfused us", "unfused / mcfuser", "unfused / chimera",
              "GFLOP/s of mcfuser"]  # fmt: skip
    return report.markdown_table(header, rows)


_TABLES: dict[str, tuple[str, Callable[[PartResults], str]]] = {
    "pruning": ("Candidates that every rule leaves (Fig. 7)", _pruning_table),
    "search": ("Seconds of searches (Table IV)", _search_table),
    "model": ("The model beside measured times (Fig. 11), and footprints (Fig. 10)", _model_table),
    "kernels": ("Fused and unfused kernels (Fig. 8)", _kernels_table),
}
