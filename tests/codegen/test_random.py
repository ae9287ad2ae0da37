"""Random expressions in random loops: native code against the interpreter, on every instruction set."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import TARGETS, check

from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.dtype import boolean, float16, float32, float64, int8, int32, int64, uint8
from tilewright.expr.nodes import Buffer, Cast, Expr, Load, Var, const
from tilewright.expr.operations import binary, cast, conjunction, maximum, minimum, select, unary
from tilewright.loops.ir import GPU_AXES, Block, BlockIter, For, Func, IterKind, LoopKind, Store

ROWS, COLUMNS = 5, 19
KINDS = [k for k in LoopKind if k not in GPU_AXES]
BUFFERS = tuple(
    Buffer(f"in_{d}", (const(7), const(11)), d) for d in (float32, float64, float16, int8, int32, int64, uint8, boolean)
)
V, W = Var("v"), Var("w")


@st.composite
def positions(draw: Callable[..., int], size: int) -> Expr:
    """An index within 0..size-1 over the block's variables."""
    a, b, c = (draw(st.integers(-3, 3)) for _ in range(3))
    inner = V * a + W * b + c
    match draw(st.integers(0, 4)):
        case 0:
            return inner % size
        case 1:
            return minimum(maximum(inner, 0), size - 1)
        case 2:
            return (V + W) // draw(st.integers(1, 4)) % size
        case 3:
            return const(c % size)
        case _:
            data = Load(BUFFERS[4], (V % 7, W % 11))
            return cast(int64, data) % size


@st.composite
def loads(draw: Callable[..., Expr], buffer: Buffer) -> Expr:
    return Load(buffer, (draw(positions(7)), draw(positions(11))))


@st.composite
def conditions(draw: Callable[..., Expr]) -> Expr:
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return draw(loads(BUFFERS[7]))
    if kind == 1:
        return draw(loads(BUFFERS[4])) < draw(st.integers(-20, 20))  # type: ignore[operator]
    if kind == 2:
        return V * draw(st.integers(-2, 2)) + W * draw(st.integers(-1, 1)) >= draw(st.integers(-9, 9))
    return conjunction(draw(conditions()), draw(conditions()))


@st.composite
def floats(draw: Callable[..., Expr], depth: int) -> Expr:
    """A float32 expression; nothing discontinuous is applied to computed values."""
    kind = draw(st.integers(0, 12)) if depth else draw(st.integers(0, 3))
    match kind:
        case 0 | 1:
            return draw(loads(BUFFERS[0]))
        case 2:
            return Cast(float32, draw(loads(draw(st.sampled_from(BUFFERS[1:])))))
        case 3:
            return cast(float32, V * 3 - W)
        case 4 | 5 | 6 | 7:
            op = ("add", "sub", "mul", "max")[kind - 4]
            return binary(op, draw(floats(depth - 1)), draw(floats(depth - 1)))
        case 8:
            return unary(draw(st.sampled_from(("neg", "abs", "tanh", "sigmoid", "erf"))), draw(floats(depth - 1)))
        case 9:
            return draw(floats(depth - 1)) / (unary("abs", draw(floats(depth - 1))) + 1.0)
        case 10:
            return cast(float32, draw(integers(int32, depth - 1)))
        case _:
            return select(draw(conditions()), draw(floats(depth - 1)), draw(floats(depth - 1)))


@st.composite
def integers(draw: Callable[..., Expr], dtype: object, depth: int) -> Expr:
    """An int32 expression, exact and wrapping."""
    kind = draw(st.integers(0, 8)) if depth else draw(st.integers(0, 2))
    match kind:
        case 0:
            return draw(loads(BUFFERS[4]))
        case 1:
            return Cast(int32, draw(loads(draw(st.sampled_from(BUFFERS[3:])))))
        case 2:
            return Cast(int32, draw(loads(BUFFERS[0])))
        case 3 | 4:
            op = draw(st.sampled_from(("floordiv", "mod", "fmod", "min", "and", "shr", "xor")))
            return binary(op, draw(integers(dtype, depth - 1)), draw(integers(dtype, depth - 1)))
        case 5 | 6:
            op = draw(st.sampled_from(("add", "sub", "mul")))
            return binary(op, draw(integers(dtype, depth - 1)), draw(integers(dtype, depth - 1)))
        case _:
            return select(draw(conditions()), draw(integers(dtype, depth - 1)), draw(integers(dtype, depth - 1)))


def arrays_for(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for b in BUFFERS:
        x = rng.standard_normal((7, 11)) * (2 if b.dtype.is_float else 30)
        arrays[b.name] = (np.abs(x) if b.dtype.kind == "u" else x).astype(b.dtype.numpy)
    return arrays


@settings(max_examples=25)
@given(st.data())
@pytest.mark.parametrize("target", TARGETS)
def test_random_blocks(target: str, data: st.DataObject) -> None:
    value = data.draw(st.one_of(floats(4), integers(int32, 3)), label="value")
    kinds = [data.draw(st.sampled_from(KINDS), label=f"kind {k}") for k in range(2)]
    predicate = data.draw(st.one_of(st.just(const(True, boolean)), conditions()), label="predicate")
    out = Buffer("out", (const(ROWS), const(COLUMNS)), value.dtype)
    i, j = Var("i"), Var("j")
    block = Block(
        "out",
        (BlockIter(V, const(ROWS), IterKind.SPATIAL, i), BlockIter(W, const(COLUMNS), IterKind.SPATIAL, j)),
        Store(out, (V, W), value),
        predicate=substitute(predicate, {V: i, W: j}),
    )
    order = data.draw(st.booleans(), label="rows outside")
    loops = [For(i, const(ROWS), kinds[0], block), For(j, const(COLUMNS), kinds[1], block)]
    outer, inner = loops if order else loops[::-1]
    func = Func("random", (*BUFFERS, out), (), (), For(outer.var, outer.extent, outer.kind, inner))
    arrays = arrays_for(data.draw(st.integers(0, 3), label="seed"))
    arrays["out"] = np.zeros((ROWS, COLUMNS), out.dtype.numpy)
    check(func, arrays, target=target, rtol=2e-5, threads=(2,))


@settings(max_examples=20)
@given(st.data())
@pytest.mark.parametrize("target", TARGETS)
def test_random_reductions(target: str, data: st.DataObject) -> None:
    """Sums and maxima over two of three loops, of any kinds, in any order."""
    value = data.draw(floats(2), label="value")
    op = data.draw(st.sampled_from(("add", "max", "min")))
    start = {"add": 0.0, "max": float("-inf"), "min": float("inf")}[op]
    out = Buffer("out", (const(ROWS),), float32)
    v, r, s = Var("a"), Var("r"), Var("s")
    value = substitute(value, {V: v + r, W: s + r})
    i, p, q = Var("i"), Var("p"), Var("q")
    extents = {i: ROWS, p: 3, q: data.draw(st.sampled_from((4, 7, 16, 20)))}
    block = Block(
        "out",
        (
            BlockIter(v, const(ROWS), IterKind.SPATIAL, i),
            BlockIter(r, const(3), IterKind.REDUCE, p),
            BlockIter(s, const(extents[q]), IterKind.REDUCE, q),
        ),
        Store(out, (v,), binary(op, Load(out, (v,)), value)),
        init=Store(out, (v,), const(start, float32)),
        predicate=data.draw(st.sampled_from((const(True, boolean), q * 2 + p < 9, i + p * 7 < 20))),
    )
    body: For | Block = block
    for var in data.draw(st.permutations((i, p, q)), label="order"):
        allowed = [k for k in KINDS if var is i or k not in (LoopKind.PARALLEL, LoopKind.VTHREAD)]
        body = For(var, const(extents[var]), data.draw(st.sampled_from(allowed)), body)
    func = Func("random", (*BUFFERS, out), (), (), body)
    check(func, arrays_for(1) | {"out": np.zeros(ROWS, np.float32)}, target=target, rtol=2e-5, threads=(2,))
