"""The set of programs of a tuned kernel, and which one runs for which sizes.

A program that won at measured sizes serves the box of sizes that they span, if none of the other measured sizes lies
in it; a box that reaches the smallest or largest measured size of a symbol is open there. All other sizes keep the
constructed programs and their selector. So at every measured size runs a program that was not slower than the
constructed one, and, unless that takes too many programs, the best one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.driver.tune.plan import PlannedKernel
from tilewright.expr.nodes import Expr, Var, const
from tilewright.expr.operations import conjunction, select
from tilewright.optimize.measurer import Candidate


@dataclass(frozen=True, slots=True)
class SizeBox:
    """Sizes between two corners, by the name of the symbol; None where it is open."""

    low: Mapping[str, int | None]
    high: Mapping[str, int | None]

    def contains(self, sizes: Mapping[str, int]) -> bool:
        """Whether sizes are in it."""
        return all(
            (self.low[n] or 0) <= size and (self.high[n] is None or size <= (self.high[n] or 0))
            for n, size in sizes.items()
        )

    def condition(self, symbols: Sequence[Var]) -> Expr:
        """Whether the values of symbols are in it."""
        by_name = {v.name: v for v in symbols}
        lower = [by_name[n] >= low for n, low in self.low.items() if low is not None]
        upper = [by_name[n] <= high for n, high in self.high.items() if high is not None]
        return conjunction(*lower, *upper)


@dataclass(frozen=True, slots=True)
class ChosenPrograms:
    """The programs of a kernel and its selector.

    Attributes:
        programs: one, or several, of which one runs at every call.
        selector: the index of the one that runs, over the task's symbols; None for one.
        served: the program of each point.
    """

    programs: tuple[Candidate, ...]
    selector: Expr | None
    served: tuple[Candidate, ...]


def choose_programs(
    kernel: PlannedKernel, best: Sequence[Candidate], ratios: Sequence[float], limit: int
) -> ChosenPrograms:
    """The programs of a kernel.

    Args:
        kernel: the kernel.
        best: the best program of each of its points.
        ratios: its time there as a multiple of the constructed program's.
        limit: the largest number of programs, at least that of the constructed ones; where it is exceeded, those that
            gain least are left out.
    """
    served = list(best)
    if not kernel.task.func.symbols or len(set(served)) == 1:
        return ChosenPrograms((served[0],), None, tuple(served))
    while True:
        programs, selector = _assemble(kernel, served)
        tuned = [c for c in programs if c not in kernel.programs]
        if len(programs) <= limit or not tuned:
            return ChosenPrograms(programs, selector, tuple(served))
        gains = {
            c: sum(p.weight * (1 - r) for p, r, own in zip(kernel.points, ratios, served, strict=True) if own == c)
            for c in tuned
        }
        least = min(tuned, key=lambda c: gains[c])
        served = [
            kernel.programs[p.program] if c == least else c for p, c in zip(kernel.points, served, strict=True)
        ]


def _assemble(kernel: PlannedKernel, best: Sequence[Candidate]) -> tuple[tuple[Candidate, ...], Expr | None]:
    """The constructed programs and those of boxes, with their selector."""
    programs = list(kernel.programs)
    selector = const(0) if kernel.selector is None else kernel.selector
    for candidate, box in boxes(kernel, best):
        if candidate not in programs:
            programs.append(candidate)
        selector = select(box.condition(kernel.task.func.symbols), const(programs.index(candidate)), selector)
    return tuple(programs), None if len(programs) == 1 else selector


def boxes(kernel: PlannedKernel, best: Sequence[Candidate]) -> list[tuple[Candidate, SizeBox]]:
    """The boxes that tuned programs serve, which contain no point of other programs."""
    points = kernel.points
    order = sorted(range(len(points)), key=lambda k: (prod(points[k].sizes.values()), k))
    constructed = [kernel.programs[p.program] for p in points]
    result: list[tuple[Candidate, SizeBox]] = []
    run: list[int] = []
    for k in (*order, None):
        if k is not None and best[k] != constructed[k]:
            box = _box([points[j].sizes for j in (*run, k)], kernel)
            others = (points[j].sizes for j in order if best[j] != best[k])
            if (not run or best[run[0]] == best[k]) and not any(map(box.contains, others)):
                run.append(k)
                continue
        if run:
            result.append((best[run[0]], _box([points[j].sizes for j in run], kernel)))
        run = [k] if k is not None and best[k] != constructed[k] and _is_alone(k, kernel, best) else []
    return result


def _is_alone(k: int, kernel: PlannedKernel, best: Sequence[Candidate]) -> bool:
    """Whether the box of one point contains no point of another program."""
    box = _box([kernel.points[k].sizes], kernel)
    return not any(box.contains(p.sizes) for j, p in enumerate(kernel.points) if best[j] != best[k])


def _box(shapes: Sequence[Mapping[str, int]], kernel: PlannedKernel) -> SizeBox:
    """The box that sizes span, open at the smallest and largest measured size of each symbol."""
    low: dict[str, int | None] = {}
    high: dict[str, int | None] = {}
    for name in shapes[0]:
        own, all_sizes = ([s[name] for s in x] for x in (shapes, [p.sizes for p in kernel.points]))
        low[name] = None if min(own) == min(all_sizes) else min(own)
        high[name] = None if max(own) == max(all_sizes) else max(own)
    return SizeBox(low, high)
