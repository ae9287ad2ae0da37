"""Names given for new loops, blocks and buffers: used, refused, recorded, replayed."""

from collections.abc import Callable

import pytest
from tests.schedule.functions import MATMUL, ROWS, check_same

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.layout.layout import Layout
from tilewright.loops.ir import Func
from tilewright.schedule.loop_transforms import peel
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import PRIMITIVES, replay
from tilewright.schedule.trace_json import decode, encode

PEELED = peel(ROWS, "i_1", 5)

CASES: dict[str, tuple[Func, Callable[[Schedule, object], object], object]] = {
    "peel": (MATMUL, lambda s, name: s.peel("k", 1, name), "rest"),
    "decompose_reduction": (MATMUL, lambda s, name: s.decompose_reduction("C", "k", name), "zeros"),
    "clone_producer": (PEELED, lambda s, names: s.clone_producer("T", "Y_2", names), ("T_own", "T_mine")),
    "compute_at": (ROWS, lambda s, names: s.compute_at("T", "i_1", names), ("column",)),
}


@pytest.mark.parametrize("case", CASES)
def test_chosen_names(case: str) -> None:
    func, apply, names = CASES[case]
    s = Schedule(func)
    answer = apply(s, names)
    expected = (names,) if isinstance(names, str) else names
    assert isinstance(expected, tuple)
    existing = {*s.loops(), *s.blocks, *s.buffers}
    assert set(expected) <= existing
    assert answer in (names, expected[0])
    assert replay(func, decode(encode(s.trace))) == s.func
    check_same(func, s.func)


@pytest.mark.parametrize("case", CASES)
def test_default_names_are_recorded_for_replay(case: str) -> None:
    func, apply, _ = CASES[case]
    s = Schedule(func)
    apply(s, None)
    assert replay(func, decode(encode(s.trace))) == s.func


@pytest.mark.parametrize("case", CASES)
def test_used_names_are_refused(case: str) -> None:
    func, apply, names = CASES[case]
    taken = func.params[0].name
    s = Schedule(func)
    with pytest.raises(ScheduleError, match=f"name '{taken}' is already used"):
        apply(s, taken if isinstance(names, str) else (taken,) * len(tuple(names)))  # type: ignore[arg-type]
    assert s.trace == ()


def test_number_of_names_must_match_new_loops() -> None:
    with pytest.raises(ScheduleError, match=r"expected names for 1 new loops \(.*_t\), got a, b"):
        Schedule(ROWS).compute_at("T", "i_1", ("a", "b"))


def test_loops_of_a_layout() -> None:
    func = tw.create_schedule(_chain()).func
    layout = Layout.of(func.allocs[0].shape).reorder((1, 0))
    s = Schedule(func)
    assert s.transform_layout("P", layout, ("x", "y")) == ("x", "y")
    assert s.loops("P") == ("x", "y")
    with pytest.raises(ScheduleError, match="name 'A' is already used"):
        Schedule(func).transform_layout("P", layout, ("A", "y"))
    scheduled = Schedule(func)
    scheduled.split("i", 2)
    with pytest.raises(ScheduleError, match="expected names for 0 new loops, got x, y"):
        scheduled.transform_layout("P", layout, ("x", "y"))


def test_loops_of_a_consumer() -> None:
    s = tw.create_schedule(_chain())
    assert s.reverse_compute_at("Q", "i", ("column",)) == ("column",)
    assert s.check(native=False).error == 0


def _chain() -> tw.Tensor:
    a = tw.placeholder((6, 4), name="A")
    p = tw.compute((6, 4), lambda i, j: a[i, j] * 2.0, "P")
    return tw.compute((6, 4), lambda r, c: p[r, c] + 1.0, "Q")


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_method_help_includes_the_primitives(name: str) -> None:
    text = getattr(tw.Workbench, name).__doc__
    assert "Legality: " in text
    first = (PRIMITIVES[name].__doc__ or "").strip().splitlines()[0]
    assert first in text
