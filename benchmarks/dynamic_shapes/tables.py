"""Tables of the results: by kind of model, and the shapes that lose most."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.common.report import markdown_table
from benchmarks.common.statistics import geometric_mean
from benchmarks.dynamic_shapes.measure import DYNAMIC_SIZES, STATIC_SHAPE

LOWEST_SHOWN = 8

HEADER = ["kind", "shapes", "of static", "lowest", "of the better peer", "lowest", "first call", "lowest",
          "first / steady"]  # fmt: skip

Result = Mapping[str, Any]


def of_static(result: Result) -> float:
    """The time of our compilation for exactly this shape over that of the dynamic one."""
    return result["steady"][STATIC_SHAPE] / result["steady"][DYNAMIC_SIZES]


def of_better_peer(result: Result, state: str) -> float | None:
    """The better peer's time over ours, of a state ("steady", "first"); None without peers."""
    times = result[state]
    peers = [t for n, t in times.items() if n not in (DYNAMIC_SIZES, STATIC_SHAPE)]
    return min(peers) / times[DYNAMIC_SIZES] if peers else None


def markdown(results: Mapping[str, Result]) -> str:
    """Both tables; empty without results."""
    if not results:
        return ""
    by_kind: dict[str, list[Result]] = {}
    for result in results.values():
        by_kind.setdefault(result["kind"], []).append(result)
    rows = [_row(kind, some) for kind, some in by_kind.items()]
    rows.append(_row("all", list(results.values())))
    lowest = sorted(results.items(), key=lambda x: of_static(x[1]))[:LOWEST_SHOWN]
    worst = [[name, f"{of_static(r):.2f}", *_milliseconds(r)] for name, r in lowest]
    wrong = [f"{', '.join(r['wrong'])} at {name}" for name, r in results.items() if r.get("wrong")]
    left_out = f"\n\nLeft out, as results are wrong: {'; '.join(wrong)}." if wrong else ""
    return (
        f"{markdown_table(HEADER, rows)}\n\nLowest of static:\n\n"
        f"{markdown_table(['shape', 'of static', 'dynamic ms', 'static ms'], worst)}{left_out}"
    )


def _row(kind: str, results: Sequence[Result]) -> list[str]:
    columns: list[list[float]] = [
        [of_static(r) for r in results],
        [x for r in results if (x := of_better_peer(r, "steady")) is not None],
        [x for r in results if (x := of_better_peer(r, "first")) is not None],
    ]
    cells = [c for values in columns for c in _cells(values)]
    slowdown = geometric_mean([r["first"][DYNAMIC_SIZES] / r["steady"][DYNAMIC_SIZES] for r in results])
    return [kind, str(len(results)), *cells, f"{slowdown:.2f}"]


def _milliseconds(result: Result) -> list[str]:
    return [f"{1e3 * result['steady'][n]:.3f}" for n in (DYNAMIC_SIZES, STATIC_SHAPE)]


def _cells(values: Sequence[float]) -> tuple[str, str]:
    return (f"{geometric_mean(values):.2f}", f"{min(values):.2f}") if values else ("-", "-")
