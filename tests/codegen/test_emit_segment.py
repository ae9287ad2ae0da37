"""The C functions of a segment: sizes, shapes, workspace, constraints, and kernels on planned memory."""

import ctypes

import numpy as np
import pytest

from tilewright.codegen import BufferCopy, KernelCall, Segment, compile_object, emit_llvm
from tilewright.errors import InternalError
from tilewright.expr.dtype import float32, float64, int64
from tilewright.expr.nodes import Expr, Symbol, Var, const
from tilewright.expr.operations import cast, maximum, select, unary
from tilewright.graph.buffer_location import ConstantLocation, InputLocation, OutputLocation, WorkspaceLocation
from tilewright.loops.parser import parse
from tilewright.loops.private_memory import THREADS
from tilewright.machine import Target
from tilewright.runtime.linker import CHECK_TYPE, MAIN_TYPE, SHAPES_TYPE, WORKSPACE_TYPE, link

N, M = Symbol("N", 1, 100), Symbol("M", 0, 50)

BIG, WIDE = Symbol("B", 0), Symbol("W", 0)

SCALE = """
func scale(X: float32[K], W: float32[1], Y: float32[K]; K: 1..10000):
    for i in parallel(K):
        block Y(v: K = i):
            Y[v] = X[v] * W[0]
"""


def segment(**changes: object) -> Segment:
    fields: dict[str, object] = {
        "name": "tw",
        "symbols": (N, M),
        "calls": (
            KernelCall("scale", (InputLocation(0), ConstantLocation("w0"), WorkspaceLocation(const(64))), (N * 4,)),
            KernelCall(
                "scale",
                (WorkspaceLocation(const(64)), ConstantLocation("w1"), WorkspaceLocation(N * 16 + 128)),
                (N * 4,),
            ),
            BufferCopy(OutputLocation(1), WorkspaceLocation(N * 16 + 128), N * 16),
            KernelCall("scale", (WorkspaceLocation(const(64)), ConstantLocation("w1"), OutputLocation(0)), (N * 4,)),
        ),
        "workspace_bytes": N * 32 + 192,
        "output_shapes": ((N, const(4)), (N * 4,), (), (maximum(M, 3), (N + 7) // 8, M % 5)),
        "weights": ("w0", "w1"),
        "constraints": (N >= M, unary("not", (N % 2).equals(1))),
    }
    return Segment(**(fields | changes))  # type: ignore[arg-type]


class Linked:
    def __init__(self, s: Segment, texts: tuple[str, ...] = (SCALE,)) -> None:
        target = Target.host()
        self.code = compile_object(emit_llvm([parse(t) for t in texts], [s], target), target)
        self.library = link(self.code, [s.name], "test")
        kinds = (CHECK_TYPE, SHAPES_TYPE, WORKSPACE_TYPE, MAIN_TYPE)
        names = ("check", "shapes", "workspace", "main")
        self.check, self.shapes, self.workspace, self.main = (
            kind(self.library.addresses[f"{s.name}_{name}"]) for kind, name in zip(kinds, names, strict=True)
        )


def sizes(*values: int) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)


def test_sizes_shapes_and_constraints() -> None:
    linked = Linked(segment())
    assert linked.check(sizes(8, 3), 1) == 0
    assert linked.check(sizes(3, 8), 1) == 1
    assert linked.check(sizes(9, 3), 1) == 2
    out = (ctypes.c_int64 * 6)()
    linked.shapes(sizes(9, 1), out)
    assert list(out) == [9, 4, 36, 3, 2, 1]
    assert linked.workspace(sizes(10, 0), 1) == 512


def test_the_workspace_depends_on_the_number_of_threads() -> None:
    linked = Linked(segment(workspace_bytes=N * 32 + THREADS * 192))
    assert [linked.workspace(sizes(10, 0), n) for n in (1, 2, 64)] == [512, 704, 12608]
    linked = Linked(segment(workspace_bytes=THREADS * (1 << 40), constraints=()))
    assert [linked.check(sizes(10, 1), n) for n in (1, 64, 65)] == [0, 0, 1]


def test_sizes_computed_in_floating_point() -> None:
    scaled = cast(int64, unary("floor", cast(float32, N) * 1.7))
    rounded = cast(int64, unary("round", cast(float64, N) / 3.0))
    chosen = select(N > 10, scaled, rounded)
    linked = Linked(segment(output_shapes=((scaled, rounded, chosen),), calls=(), constraints=()))
    for n in (1, 7, 10, 11, 99):
        out = (ctypes.c_int64 * 3)()
        linked.shapes(sizes(n, 0), out)
        a, b = int(np.floor(np.float32(n) * np.float32(1.7))), int(np.rint(n / 3))
        assert list(out) == [a, b, a if n > 10 else b]


@pytest.mark.parametrize("threads", [1, 2])
def test_main_runs_calls_on_planned_memory(threads: int) -> None:
    linked = Linked(segment())
    rng = np.random.default_rng(1)
    x = rng.standard_normal((10, 4)).astype(np.float32)
    weights = [np.array([2.0], np.float32), np.array([3.0], np.float32)]
    outputs = [np.zeros((10, 4), np.float32), np.zeros(40, np.float32)]
    memory = np.zeros(linked.workspace(sizes(10, 1), threads) + 64, np.uint8)
    aligned = memory.ctypes.data + -memory.ctypes.data % 64

    def pointers(arrays: list[np.ndarray]) -> ctypes.Array[ctypes.c_void_p]:
        return (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))

    status = linked.main(pointers([x]), pointers(outputs), pointers(weights), aligned, sizes(10, 1), threads)
    assert status == 0
    np.testing.assert_array_equal(outputs[0], x * 2 * 3)
    np.testing.assert_array_equal(outputs[1], (x * 2 * 3).ravel())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (KernelCall("other", ()), "call of unknown kernel 'other'"),
        (KernelCall("scale", (InputLocation(0),), (N,)), "kernel 'scale' takes 5 arguments, got 3"),
    ],
)
def test_invalid_calls_are_rejected(call: KernelCall, message: str) -> None:
    with pytest.raises(InternalError) as error:
        emit_llvm([parse(SCALE)], [segment(calls=(call,))], Target.host())
    assert error.value.what == message


def test_invalid_kernels_are_rejected() -> None:
    target = Target.host()
    with pytest.raises(InternalError, match="two kernels have the name 'scale'"):
        emit_llvm([parse(SCALE), parse(SCALE)], [], target)
    inside = SCALE.replace("Y: float32[K]; K", "Z: float32[K]; K")
    inside = inside.replace("    for", "    alloc Y: float32[K]\n    for")
    with pytest.raises(InternalError, match="buffer 'Y' of scope memory must be a parameter"):
        emit_llvm([parse(inside)], [], target)
    with pytest.raises(InternalError, match="private buffer 'Y' must be a parameter: it exceeds the stack"):
        emit_llvm([parse(inside.replace("alloc Y: float32[K]", "alloc Y: float32[K] in stack"))], [], target)
    with pytest.raises(InternalError, match="constraint N of 'tw' is no condition"):
        emit_llvm([parse(SCALE)], [segment(constraints=(N,))], target)
    with pytest.raises(InternalError, match="a size expression reads buffer 'B'"):
        emit_llvm([parse(SCALE)], [segment(workspace_bytes=load_of_constant_buffer())], target)
    with pytest.raises(InternalError, match="variable 'Q' has no value here"):
        emit_llvm([parse(SCALE)], [segment(workspace_bytes=Var("Q") * 2)], target)
    with pytest.raises(InternalError, match="LLVM rejects the generated code: LLVM IR parsing error"):
        compile_object("define nonsense", target)


@pytest.mark.parametrize(
    ("changes", "values", "status"),
    [
        ({"buffer_bytes": (BIG * WIDE * 4,)}, (1 << 22, 1 << 22), 0),
        ({"buffer_bytes": (BIG * WIDE * 4 + 64,)}, (1 << 22, 1 << 22), 1),
        ({"buffer_bytes": (BIG * WIDE,)}, (1 << 32, 1 << 32), 1),  # the product wraps to 0
        ({"buffer_bytes": (BIG * BIG * BIG // (WIDE * WIDE),)}, (1 << 22, 1 << 22), 1),  # the quotient is small
        ({"buffer_bytes": (maximum(BIG, 3) + (BIG % WIDE),)}, (1 << 47, 5), 1),
        ({"buffer_bytes": (select(BIG > WIDE, BIG * 4, WIDE),)}, (1 << 45, 5), 1),
        ({"buffer_bytes": (select(BIG > WIDE, BIG, BIG // (WIDE - 5)),)}, (9, 5), 0),
        ({"buffer_bytes": (cast(int64, unary("floor", cast(float32, BIG) * 2.0)),)}, (1 << 46, 1), 1),
        ({"workspace_bytes": BIG * WIDE * 64}, (1 << 31, 1 << 31), 1),
        ({"output_shapes": ((BIG * WIDE,),)}, (1 << 32, 1 << 32), 1),
        ({"calls": (BufferCopy(OutputLocation(0), InputLocation(0), BIG * WIDE),)}, (1 << 32, 1 << 32), 1),
        # wrapped, this constraint would hold
        ({"constraints": ((BIG * WIDE).equals(0),)}, (1 << 32, 1 << 32), 2),
        ({"constraints": ((BIG * WIDE).equals(12),), "buffer_bytes": (BIG * WIDE,)}, (3, 5), 1),
    ],
)
def test_overflow_guards(changes: dict[str, object], values: tuple[int, int], status: int) -> None:
    plain = {"symbols": (BIG, WIDE), "calls": (), "constraints": (), "output_shapes": (), "workspace_bytes": const(0)}
    assert Linked(segment(**(plain | changes))).check(sizes(*values), 1) == status


def load_of_constant_buffer() -> Expr:
    from tilewright.expr.nodes import Buffer

    return Buffer("B", (const(1),), int64)[0]
