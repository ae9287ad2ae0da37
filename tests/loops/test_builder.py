"""The builder: equal to parsed text, and its errors."""

import pytest

from tilewright.errors import InternalError
from tilewright.expr.dtype import float32
from tilewright.expr.nodes import MemoryScope, const
from tilewright.expr.operations import maximum
from tilewright.loops.builder import Builder
from tilewright.loops.ir import LoopKind
from tilewright.loops.parser import parse
from tilewright.verify.verifier import verify

TEXT = """
func f(A: float32[N, 8], B: float32[N]; N: 1..9):
    alloc T: float32[] in stack
    for i in parallel(N):
        for k in serial(8):
            block T(reduce r: 8 = k):
                init T[] = 0.0
                T[] = T[] + A[i, r]
        block B(v: N = i) where i < N:
            B[v] = max(T[], 1.0)
"""


def test_builder_matches_parsed_text() -> None:
    b = Builder("f")
    n = b.symbol("N", 1, 9)
    a, out = b.param("A", (n, 8), float32), b.param("B", (n,), float32)
    t = b.alloc("T", (), float32, MemoryScope.STACK)
    with b.loop("i", n, LoopKind.PARALLEL) as i:
        with b.loop("k", 8) as k, b.block("T") as block:
            r = block.reduce("r", 8, k)
            block.init(t, (), 0.0)
            block.update(t, (), a[i, r])
        with b.block("B", where=i < n) as block:
            v = block.spatial("v", n, i)
            block.store(out, v, maximum(t[()], const(1.0, float32)))
    func = b.func()
    verify(func)
    assert func == parse(TEXT)


def test_an_empty_loop_is_rejected() -> None:
    b = Builder("f")
    with pytest.raises(InternalError, match="loop 'i': a loop needs a body"), b.loop("i", 4):
        pass


def test_an_empty_block_is_rejected() -> None:
    b = Builder("f")
    with pytest.raises(InternalError, match="block 'B': a block needs one store"), b.block("B"):
        pass


def test_an_empty_function_is_rejected() -> None:
    with pytest.raises(InternalError, match="func 'f': a function needs a statement"):
        Builder("f").func()
