"""Select axes are unrolled, and programs with them keep their semantics."""

import pytest
from tests.optimize.native import same
from tests.optimize.programs import TARGETS, Program, check

from tilewright.expr.computation import Axis, Computation
from tilewright.expr.dtype import float32
from tilewright.expr.nodes import Buffer, Symbol, Var, const
from tilewright.expr.operations import select
from tilewright.loops.ir import For, LoopKind, blocks, walk
from tilewright.loops.lowering import lower_to_loops
from tilewright.optimize.rule import Rule
from tilewright.optimize.select_axes import MAX_UNROLLED_CASES, select_axes

N = Symbol("n", 1, 40)


def chosen(cases, size, position=0):
    """out[c, i, j] = a[i, j] * (c + 1), by selects on c; `position` places the select axis."""
    sizes = [size, const(24)]
    a = Buffer("a", tuple(sizes), float32)
    shape = [*sizes[:position], const(cases), *sizes[position:]]
    axes = tuple(Axis(Var(f"i{k}"), n) for k, n in enumerate(shape))
    index = [x.var for k, x in enumerate(axes) if k != position]
    value = a[tuple(index)] * float(cases)
    for k in reversed(range(cases - 1)):
        value = select(axes[position].var.equals(k), a[tuple(index)] * float(k + 1), value)
    return Computation(Buffer("out", tuple(shape), float32), axes, (), value)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("size", [const(7), N])
def test_select_axes_are_unrolled(target, position, size):
    program = Program([chosen(3, size, position)], {N: 11} if size is N else {})
    schedule = check(program, target)
    kinds = [(s.kind, s.extent) for s, _ in walk(schedule.func.body) if isinstance(s, For)]
    assert (LoopKind.UNROLLED, const(3)) in kinds


def test_native_code():
    for size, sizes in ((const(7), {}), (N, {N: 13})):
        same(Program([chosen(4, size)], sizes), "x86-64-v3", Rule())


def test_only_few_literal_cases_are_select_axes():
    def positions(stage):
        return select_axes(blocks(lower_to_loops("f", [stage], [*stage.inputs, stage.output], (N,)).body)[0])

    assert positions(chosen(4, const(9))) == (0,)
    assert positions(chosen(4, const(9), 1)) == (1,)
    assert positions(chosen(MAX_UNROLLED_CASES + 1, const(9))) == ()
    axes = (Axis(Var("i0"), N),)
    a = Buffer("a", (N,), float32)
    symbolic = Computation(
        Buffer("out", (N,), float32), axes, (), select(axes[0].var.equals(0), a[axes[0].var], a[axes[0].var] * 2.0)
    )
    assert positions(symbolic) == ()
    near = Computation(
        Buffer("out", (const(8),), float32), (Axis(Var("i0"), const(8)),), (),
        select(Var("i0") < 3, Buffer("a", (const(8),), float32)[Var("i0")], 0.0),
    )  # fmt: skip
    assert positions(near) == ()
