"""Tables of the results, as Markdown."""

from collections.abc import Mapping
from typing import Any

from benchmarks.common.report import markdown_table
from benchmarks.common.result_store import ResultStore
from benchmarks.common.statistics import geometric_mean
from benchmarks.paper_vortex.duel import ratios

NAMES = ("vortex", "hybrid", "analytical", "cost model", "gensor", "static1", "static2", "dietcode")
BUCKETS = ((1, 127), (128, 255), (256, 384))
"""Ranges of M in DietCode's table 6; its samples are in the second."""


def markdown(store: ResultStore) -> str:
    """All tables."""
    parts = [_cases(store.all("cases")), _sweep(store.all("sweep")), _costs(store)]
    return "\n\n".join(p for p in parts if p)


def _cases(results: Mapping[str, Mapping[str, Any]]) -> str:
    if not results:
        return ""
    rows: list[list[str]] = []
    for title, kinds in (("products", ("gemm",)), ("convolutions", ("conv",)), ("all", ("gemm", "conv"))):
        some = [ratios(r) for name, r in results.items() if name.split()[0] in kinds]
        if some:
            rows.append([title, str(len(some)), *(_cell([r[n] for r in some if n in r]) for n in NAMES)])
    best = [r["oracle_is"].split()[0] for r in results.values()]
    counts = ", ".join(f"{kind} {best.count(kind)}" for kind in dict.fromkeys(best))
    table = markdown_table(["cases", "number", *NAMES], rows)
    end = f"Geometric mean and, in brackets, the lowest. The oracle was: {counts}."
    return f"Speed over the oracle's, one thread.\n\n{table}\n\n{end}"


def _cell(values: list[float]) -> str:
    return f"{geometric_mean(values):.2f} ({min(values):.2f})" if values else "-"


def _sweep(results: Mapping[str, Mapping[str, Any]]) -> str:
    if not results:
        return ""
    rows: list[list[str]] = []
    for low, high in BUCKETS:
        some = [r["dietcode"] / r["vortex"] for r in results.values() if low <= r["m"] <= high]
        if some:
            numbers = (geometric_mean(some), min(some), max(some))
            rows.append([f"{low}..{high}", str(len(some)), *(f"{x:.2f}" for x in numbers)])
    title = "Product of M x 768 x 2304, programs of `dietcode` at samples of M in 128..255: its time over `vortex`'s."
    return f"{title}\n\n{markdown_table(['M', 'number', 'geometric mean', 'lowest', 'highest'], rows)}"


def _costs(store: ResultStore) -> str:
    lines: list[str] = []
    for name, unit in (("analyser", "us"), ("selector", "ns")):
        result = store.get("selection", name)
        if result is not None:
            cells = ", ".join(f"{n}: {t:.0f} {unit}" for n, t in result["times"].items())
            lines.append(f"{name}, by number of programs: {cells}")
    result = store.get("offline", "library")
    if result is not None:
        numbers = ", ".join(f"{k} {v}" for k, v in result.items() if k not in ("seconds", "source"))
        lines.append(f"library: {numbers}, in {result['seconds']:.2f} s")
    return "\n".join(f"- {line}" for line in lines)
