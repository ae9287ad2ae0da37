"""Where private buffers are: on the stack, or in slices of the workspace."""

import pytest

from tilewright.expr.dtype import DType, boolean, float32, float64, int64
from tilewright.expr.nodes import Buffer, Expr, MemoryScope, Symbol, const
from tilewright.loops.parser import parse
from tilewright.loops.private_memory import (
    MAX_STACK_BYTES,
    PRIVATE_PADDING,
    THREADS,
    slice_bytes,
    workspace_buffers,
    workspace_of,
)
from tilewright.lower.expose_workspace import expose_workspace
from tilewright.machine.alignment import BUFFER_ALIGNMENT
from tilewright.machine.threads import MAX_THREADS

TEXT = """
func f(A: float32[n], Y: float32[n]; n: 1..100):
{allocs}
    for i in {kind}(n):
        block Y(v: n = i):
            Y[v] = A[v]
"""


def func_with(*allocs: str, kind: str = "parallel"):
    return parse(TEXT.format(allocs="\n".join(f"    alloc {a}" for a in allocs), kind=kind))


@pytest.mark.parametrize(
    ("allocs", "moved"),
    [
        (("T: float32[65536] in stack",), ""),
        (("T: float32[65537] in stack",), "T"),
        (("T: float32[40000] in stack", "S: float32[30000] in stack"), "T"),
        (("S: float32[30000] in stack", "T: float32[40000] in stack", "U: float32[10] in stack"), "T"),
        (("S: float32[60000] in stack", "T: float32[70000] in stack", "U: float32[50000] in stack"), "ST"),
        (("S: float32[10] in stack", "T: float32[n] in stack"), "T"),
        (("S: float32[65536] in stack", "T: float32[n] in stack"), "T"),
        (("S: float32[70000]", "T: float32[8] in register", "U: float32[65536] in stack"), ""),
    ],
)
def test_the_largest_leave_the_stack(allocs: tuple[str, ...], moved: str) -> None:
    func = func_with(*allocs)
    assert "".join(sorted(b.name for b in workspace_buffers(func))) == moved
    exposed = expose_workspace(func)
    kept = [b for b in exposed.allocs if b.scope is MemoryScope.STACK]
    assert sum(int(str(b.size)) * b.dtype.bytes for b in kept) <= MAX_STACK_BYTES
    assert {b.name for b in exposed.params} == {"A", "Y", *moved, *(["S"] if "S: float32[70000]" in allocs else [])}
    assert all(b.scope is MemoryScope.STACK for b in exposed.params if b.name in moved)


@pytest.mark.parametrize("dtype", [float32, float64, int64, boolean])
@pytest.mark.parametrize("size", [1, 63, 65, 70000])
def test_a_slice_has_whole_lines_and_padding(dtype: DType, size: int) -> None:
    taken = int(str(slice_bytes(Buffer("T", (const(size),), dtype, MemoryScope.STACK))))
    assert taken % BUFFER_ALIGNMENT == 0
    assert 0 <= taken - (size + PRIVATE_PADDING) * dtype.bytes < BUFFER_ALIGNMENT


def test_only_parallel_loops_need_slices_for_several_threads() -> None:
    for kind, threads in (("parallel", THREADS), ("serial", const(1))):
        func = expose_workspace(func_with("T: float32[70000] in stack", kind=kind))
        room = workspace_of(func, func.params[-1], THREADS)
        assert room == Buffer("T", (threads, const(70512)), float32)
        assert workspace_of(func, func.params[0], THREADS) == func.params[0]


@pytest.mark.parametrize("other", [Symbol("threads", 1, MAX_THREADS), Symbol("threads")])
def test_no_symbol_of_a_user_is_the_number_of_threads(other: Expr) -> None:
    assert other is not THREADS
    assert str(other) == str(THREADS)
