"""GPU launches and vthread loops: text, and the errors of invalid launches."""

import pytest

from tilewright.errors import VerifyError
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.verify.verifier import verify

GOOD = """\
func f(A: float32[N, 32], B: float32[N, 32]; N: 1..99):
    alloc T: float32[2] in register
    for i in block_y(N):
        for o in block_x(2):
            for v in vthread(2):
                for t in thread_x(8):
                    block T(a: N = i, b: 32 = o * 16 + t + v * 8):
                        T[(b - (o * 16 + t)) // 8] = A[a, b]
                    block B(c: N = i, d: 32 = o * 16 + t + v * 8):
                        B[c, d] = T[(d - (o * 16 + t)) // 8]
"""


def test_gpu_axes_print_parse_and_verify() -> None:
    func = parse(GOOD)
    assert parse(show(func)) == func
    verify(func)


def copy(*loops: str) -> str:
    """A copy of a matrix in two loops, of the kinds and extents that are given."""
    i, j = loops
    return (
        f"func f(A: float32[4, 8], B: float32[4, 8]):\n    for i in {i}(4):\n        for j in {j}(8):\n"
        "            block B(v: 4 = i, w: 8 = j):\n                B[v, w] = A[v, w]\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (copy("block_x", "block_x"), "loop 'j': it is inside loop 'i', which is on block_x too"),
        (copy("thread_x", "block_x"), "loop 'j': block axis block_x can't be inside thread axis thread_x (loop 'i')"),
        (copy("parallel", "block_x"), "loop 'j': block_x can't be inside parallel loop 'i'"),
        (copy("vectorized", "thread_y"), "loop 'j': thread_y can't be inside vectorized loop 'i'"),
        (copy("block_x", "parallel"), "loop 'j': a parallel loop can't be inside loop 'i' on block_x"),
        (
            "func f(A: float32[4], B: float32[4], C: float32[4]):\n    for i in block_x(2):\n"
            "        for j in thread_x(2):\n            block B(v: 4 = i * 2 + j):\n                B[v] = A[v]\n"
            "        for k in thread_x(1):\n            for m in serial(2):\n"
            "                block C(w: 4 = i * 2 + m + k):\n                    C[w] = A[w]\n",
            "loop 'k': its extent on thread_x must be that of loop 'j', 2; got 1",
        ),
        (
            "func f(A: float32[4], S: float32[]):\n    for k in block_x(4):\n        block S(reduce r: 4 = k):\n"
            "            init S[] = 0.0\n            S[] = S[] + A[r]\n",
            "block 'S': reduces over block_x loop 'k' (variable 'r')",
        ),
        (
            "func f(A: float32[4], S: float32[]):\n    for k in vthread(4):\n        block S(reduce r: 4 = k):\n"
            "            init S[] = 0.0\n            S[] = S[] + A[r]\n",
            "block 'S': reduces over vthread loop 'k' (variable 'r')",
        ),
        (
            "func f(A: float32[4], B: float32[4]):\n    alloc T: float32[] in register\n    for v in vthread(4):\n"
            "        block T(a: 4 = v):\n            T[] = A[a]\n        block B(b: 4 = v):\n            B[b] = T[]\n",
            "block 'T': iterations of vthread loop 'v' may write the same element: T[]",
        ),
        (
            "func f(A: float32[8], B: float32[8]):\n    alloc T: float32[8] in stack\n    for i in thread_x(8):\n"
            "        block T(a: 8 = i):\n            T[a] = A[a]\n    for j in thread_x(8):\n"
            "        block B(b: 8 = j):\n            B[b] = T[b]\n",
            "loop 'i' on thread_x: stack buffer 'T' of one thread is used outside of it too, in block 'B'",
        ),
        (
            "func f(A: float32[8], B: float32[8]):\n    alloc T: float32[8] in stack\n    for i in parallel(8):\n"
            "        block T(a: 8 = i):\n            T[a] = A[a]\n        block B(b: 8 = i):\n"
            "            B[b] = select(1 <= b, T[b - 1], 0.0)\n",
            "loop 'i': accesses to 'T' of blocks 'T', 'B' are not proved to stay in one iteration",
        ),
        (
            "func f(A: float32[8], B: float32[8]):\n    alloc T: float32[] in stack\n    for i in parallel(8):\n"
            "        block T(a: 8 = i) where i < 1:\n            T[] = A[a]\n        block B(b: 8 = i):\n"
            "            B[b] = T[]\n",
            "block 'B': reads private buffer 'T' in iterations of 'i' that do not write it",
        ),
        (
            "func f(A: float32[8, 3], C: float32[8]):\n    for i in serial(4):\n        block C_init(v: 8 = i):\n"
            "            C[v] = 0.0\n    for j in serial(8):\n        for k in serial(3):\n"
            "            block C(w: 8 = j, reduce r: 3 = k):\n                C[w] = C[w] + A[w, r]\n",
            "block 'C_init': binding i of 'v' covers 0..3, expected 0..7",
        ),
    ],
)
def test_invalid_launches_are_rejected(text: str, message: str) -> None:
    with pytest.raises(VerifyError) as error:
        verify(parse(text))
    assert message in str(error.value)
