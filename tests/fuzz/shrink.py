"""A failing case made small: steps dropped, choices made simpler, while it still fails in the same way."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.case import Case

MOST_TRIALS = 250


def shrunk(case: Case, fails: Callable[[Case], "Case | None"]) -> Case:
    """The smallest case that was found.

    Args:
        case: fails.
        fails: the case as it is when its illegal steps are left out, where it still fails in the same way; else None.
    """
    trials = 0
    progress = True
    while progress:
        progress = False
        for candidate in simpler(case):
            if trials == MOST_TRIALS:
                return case
            trials += 1
            smaller = fails(candidate)
            if smaller is not None and weight(smaller) < weight(case):
                case, progress = smaller, True
                break
    return case


def weight(case: Case) -> tuple[int, ...]:
    """What is smaller: steps first, then layouts, then choices."""
    total = sum(len(v) if isinstance(v, str) else int(v) for v in case.record.values())
    primitives = sum(1 + len(layout.primitives) for layout in case.layouts.values())
    named = sum(a is not None for step in case.trace for a in step.args)
    return len(case.trace), primitives, total, named


def simpler(case: Case) -> Iterator[Case]:
    """Cases that are simpler in one respect; the boldest first."""
    for size in (len(case.trace) // 2, 2, 1):
        for start in range(0, len(case.trace), max(size, 1)):
            if size:
                yield replace(case, trace=case.trace[:start] + case.trace[start + size :])
    for name, layout in case.layouts.items():
        rest = {n: x for n, x in case.layouts.items() if n != name}
        yield replace(case, layouts=rest)
        for k in range(len(layout.primitives)):
            try:
                fewer = type(layout)(layout.shape, layout.primitives[:k] + layout.primitives[k + 1 :])
            except Exception:  # the rest does not fit without it
                continue
            yield replace(case, layouts={**case.layouts, name: fewer})
    for name, value in case.record.items():
        for smaller in _smaller(value):
            yield replace(case, record={**case.record, name: smaller})


def _smaller(value: int | str | bool) -> tuple[int | bool, ...]:
    if isinstance(value, bool):
        return (False,) if value else ()
    if isinstance(value, str):
        return ()
    return tuple(dict.fromkeys(v for v in (0, 1, value // 2, value - 1) if 0 <= v < value))
