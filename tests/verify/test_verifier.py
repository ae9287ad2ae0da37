"""The verifier: accepted programs, and the messages for invalid ones."""

import pytest
from tests.loops.programs import conv, matmul_relu
from tests.loops.valid_programs import VALID_PROGRAMS

from tilewright.errors import VerifyError
from tilewright.expr.dtype import float32
from tilewright.expr.nodes import Binary, Buffer, Load, Var, const
from tilewright.loops.ir import Block, Func, Seq, Store
from tilewright.loops.parser import parse
from tilewright.verify.verifier import verify


@pytest.mark.parametrize("text", VALID_PROGRAMS.values(), ids=VALID_PROGRAMS)
def test_valid_programs_are_accepted(text: str) -> None:
    verify(parse(text))


AB = "A: float32[8], B: float32[8]"


def one(body: str, loop: str = "for i in serial(8):", iters: str = "v: 8 = i", head: str = AB) -> str:
    """A function with one loop and one block."""
    return f"func f({head}):\n    {loop}\n        block B({iters}):\n            {body}\n"


BAD: dict[str, tuple[str, str]] = {
    "loop named twice": (
        one("B[v] = A[v]", "for v in serial(8):", "v: 8 = v"),
        "func 'f', its declarations: 2 symbols, loops or iteration variables are named 'v'",
    ),
    "block named twice": (
        one("B[v] = A[v]") + "    for j in serial(8):\n        block B(w: 8 = j):\n            B[w] = A[w]\n",
        "func 'f', its declarations: 2 blocks are named 'B'",
    ),
    "loop variable out of scope": (
        one("B[v] = A[v]") + "    for j in serial(8):\n        block C(w: 8 = i):\n            B[w] = A[w]\n",
        "func 'f', block 'C': variable 'i' is not defined here",
    ),
    "extent over an inner variable": (
        "func f(B: float32[8]; N: 1..8):\n    for i in serial(8):\n        block B(v: 8 = i):\n            B[v] = 1.0\n"
        "    for j in serial(i):\n        block C(w: 8 = 0):\n            B[w] = 1.0\n",
        "func 'f', loop 'j': variable 'i' is not defined here\n    for j in serial(i):",
    ),
    "stored type": (
        one("B[v] = cast(float64, A[v])"),
        "func 'f', block 'B': the value stored in 'B' must be float32, got float64: cast(float64, A[v])",
    ),
    "index type": (
        one("B[v] = A[cast(int32, v)]"),
        "func 'f', block 'B': indices must be int64: A[cast(int32, v)]",
    ),
    "binding type": (
        one("B[v] = A[v]", iters="v: 8 = i < 3"),
        "func 'f', block 'B': the binding of 'v' must be int64, got bool: i < 3",
    ),
    "predicate type": (
        one("B[v] = A[v]").replace("v: 8 = i)", "v: 8 = i) where i"),
        "func 'f', block 'B': the predicate must be bool, got int64: i",
    ),
    "predicate that reads": (
        one("B[v] = A[v]").replace("v: 8 = i)", "v: 8 = i) where A[i] < 0.0"),
        "func 'f', block 'B': the predicate A[i] < 0.0 reads 'A': it may depend on loops and sizes only; "
        "use select in the value",
    ),
    "read before written": (
        one("B[v] = T[v]").replace("    for", "    alloc T: float32[8]\n    for", 1),
        "func 'f', block 'B': buffer 'T' is read before it is written",
    ),
    "accumulation without a first value": (
        one("B[0] = B[0] + A[v]", iters="reduce v: 8 = i"),
        "func 'f', block 'B': buffer 'B' is read before it is written",
    ),
    "init of another element": (
        one("init B[0] = 0.0\n            B[1] = B[1] + A[v]", iters="reduce v: 8 = i"),
        "func 'f', block 'B': init and body must store the same element",
    ),
    "register of symbolic size": (
        one("B[v] = A[v]", head="A: float32[8], B: float32[8]; N: 1..8").replace(
            "    for", "    alloc T: float32[N] in register\n    for", 1),
        "func 'f', buffer 'T': scope register needs a literal shape\n    T: float32[N] in register",
    ),
    "register indexed by a serial loop": (
        "func f(A: float32[8], B: float32[8]):\n    alloc T: float32[8] in register\n    for i in serial(8):\n"
        "        block T(v: 8 = i):\n            T[v] = A[v]\n"
        "    for j in unrolled(8):\n        block B(w: 8 = j):\n            B[w] = T[w]\n",
        "func 'f', block 'T': index v of register buffer 'T' depends on i, which is no unrolled, vectorized or vthread "
        "loop",
    ),
    "parameter in a register": (
        one("B[v] = A[v]", head="A: float32[8] in register, B: float32[8]"),
        "func 'f', buffer 'A': a parameter has an address, got scope register",
    ),
    "write above the end": (
        one("B[v + 1] = A[v]"),
        "func 'f', block 'B': index v + 1 of buffer 'B' (written, dimension 0) is not proved < 8\n    block B(",
    ),
    "read below zero": (
        one("B[v] = A[v - 1]"),
        "func 'f', block 'B': index v - 1 of buffer 'A' (read, dimension 0) is not proved >= 0",
    ),
    "condition that does not protect": (
        one("B[v] = select(v - 2 >= 0, A[v - 1], A[v - 1])"),
        "func 'f', block 'B': index v - 1 of buffer 'A' (read, dimension 0) is not proved >= 0",
    ),
    "gather that is not clamped": (
        one("B[v] = A[I[v]]", head=AB + ", I: int64[8]"),
        "func 'f': 2 problems\n  block 'B': index I[v] of buffer 'A' (read, dimension 0) is not proved >= 0",
    ),
    "symbolic size too small": (
        one("B[v] = A[v]", head="A: float32[N], B: float32[8]; N: 1..8"),
        "func 'f', block 'B': index v of buffer 'A' (read, dimension 0) is not proved < N",
    ),
    "binding beyond the domain": (
        one("B[v] = A[v]", "for i in serial(9):"),
        "func 'f', block 'B': binding i of 'v' is not proved < 8\n    for i in serial(9):\n      block B(v: 8 = i):",
    ),
    "binding below the domain": (
        one("B[v] = A[v]", iters="v: 8 = i - 1"),
        "func 'f', block 'B': binding i - 1 of 'v' is not proved >= 0",
    ),
    "missing guard": (
        one("B[v] = A[v]", "for i in serial((N + 3) // 4 * 4):", "v: N = i", "A: float32[N], B: float32[N]; N: 1..99"),
        "func 'f', block 'B': binding i of 'v' is not proved < N",
    ),
    "parallel reduction": (
        one("init B[0] = 0.0\n            B[0] = B[0] + A[v]", "for i in parallel(8):", "reduce v: 8 = i"),
        "reduces over parallel loop 'i' (variable 'v')",
    ),
    "parallel loop that drives nothing": (
        one("B[v] = A[v]", "for i in parallel(8):\n      for j in serial(8):", "v: 8 = j"),
        "func 'f', block 'B': iterations of parallel loop 'i' may write the same element: B[v]",
    ),
    "tiles that overlap": (
        one("B[v] = A[v]", "for i in parallel(3):\n      for j in serial(4):", "v: 8 = i * 2 + j"),
        "func 'f', block 'B': iterations of parallel loop 'i' may write the same element: B[v]",
    ),
    "only the remainder of a parallel index": (
        one("B[v] = A[v]", "for i in parallel(16):", "v: 8 = i % 8"),
        "func 'f', block 'B': iterations of parallel loop 'i' may write the same element: B[v]",
    ),
    "vector lanes that write one element": (
        one("B[v // 2] = A[v]", "for i in vectorized(8):"),
        "func 'f', block 'B': iterations of vectorized loop 'i' may write the same element: B[v // 2]",
    ),
    "scatter": (
        one("B[min(max(I[v], 0), 7)] = A[v]", "for i in parallel(8):", head=AB + ", I: int64[8]"),
        "func 'f', block 'B': iterations of parallel loop 'i' may write the same element: B[min(max(I[v], 0), 7)]",
    ),
    "reads the neighbour": (
        "func f(A: float32[8], B: float32[7]):\n    alloc T: float32[8]\n    for i in parallel(7):\n"
        "        block T(v: 8 = i):\n            T[v] = A[v]\n"
        "        block B(w: 7 = i):\n            B[w] = T[w + 1]\n",
        "accesses to 'T' of blocks 'T', 'B' are not proved to stay in one iteration\n    for i in parallel(7):",
    ),
    "reads all of what others write": (
        "func f(A: float32[8], B: float32[8]):\n    alloc T: float32[8]\n    for i in parallel(8):\n"
        "        block T(v: 8 = i):\n            T[v] = A[v]\n"
        "        for j in serial(8):\n            block B(w: 8 = i, x: 8 = j):\n                B[w] = T[x]\n",
        "func 'f', block 'B': may read an element that another iteration of parallel loop 'i' writes: T[x]",
    ),
    "workspace shared by threads": (
        "func f(A: float32[8], B: float32[8]):\n    alloc T: float32[]\n    for i in parallel(8):\n"
        "        block T(v: 8 = i):\n            T[] = A[v]\n        block B(w: 8 = i):\n            B[w] = T[]\n",
        "func 'f', block 'T': iterations of parallel loop 'i' may write the same element: T[]",
    ),
    "private value of the last iteration": (
        "func f(A: float32[8], B: float32[8]):\n    alloc T: float32[] in stack\n    for i in serial(8):\n"
        "        block T0(u: 8 = i):\n            T[] = 0.0\n"
        "    for j in parallel(8):\n        block B(w: 8 = j):\n            B[w] = T[]\n"
        "        block T(v: 8 = j):\n            T[] = A[v]\n",
        "func 'f', block 'T': iterations of parallel loop 'j' may write the same element: T[]",
    ),
    "private value that nobody wrote in this iteration": (
        "func f(A: float32[8], B: float32[8]):\n    alloc T: float32[] in stack\n    for j in parallel(8):\n"
        "        block T(v: 8 = j):\n            T[] = T[] + A[v]\n"
        "        block B(w: 8 = j):\n            B[w] = T[]\n",
        "func 'f', block 'T': buffer 'T' is read before it is written",
    ),
    "output not covered": (
        one("B[v] = A[v]", "for i in serial(7):"),
        "func 'f', block 'B': binding i of 'v' covers 0..6, expected 0..7",
    ),
    "output covered from 1": (
        one("B[v] = A[v]", "for i in serial(7):", "v: 8 = i + 1"),
        "func 'f', block 'B': binding i + 1 of 'v' covers 1..7, expected 0..7",
    ),
    "gaps": (
        one("B[v] = A[v]", "for i in serial(4):", "v: 8 = i * 2"),
        "func 'f', block 'B': binding i * 2 leaves gaps or is not a number in mixed radix: step 2 after 1 values",
    ),
    "diagonal": (
        one("B[v, w] = 1.0", iters="v: 8 = i, w: 8 = i", head="B: float32[8, 8]"),
        "func 'f', block 'B': i drives several bindings, so they miss combinations of values: i, i",
    ),
    "a loop and a digit of it": (
        one("B[v, w] = 1.0", "for i in serial(4):", "v: 4 = i, w: 2 = i // 2", "B: float32[4, 2]"),
        "func 'f', block 'B': i drives several bindings, so they miss combinations of values: i, i // 2",
    ),
    "reduction over one digit of a loop": (
        one("init B[v] = 0.0\n            B[v] = B[v] + A[w]",
            "for i in serial(8):\n      for k in serial(16):", "v: 8 = i, reduce w: 8 = k // 2"),
        "func 'f', block 'B': binding k // 2 of 'w' repeats values, whose points are counted twice",
    ),
    "predicate that drops points": (
        one("B[v] = A[v]").replace("v: 8 = i)", "v: 8 = i) where i < 7"),
        "func 'f', block 'B': binding i of 'v' covers 0..6, expected 0..7",
    ),
    "predicate of another form": (
        one("B[v] = A[v]").replace("v: 8 = i)", "v: 8 = i) where i % 2 == 0"),
        "func 'f', block 'B': predicate i % 2 == 0 is not of the form `index < bound`",
    ),
    "fused extent that is no multiple": (
        one("B[v, w] = 1.0", "for i in serial(10):", "v: 4 = i // 3, w: 3 = i % 3", "B: float32[4, 3]"),
        "func 'f', block 'B': the extent of i is no multiple of 3, so bindings miss combinations of values",
    ),
    "reduction counted twice": (
        one("init B[v] = 0.0\n            B[v] = B[v] + A[w]",
            "for i in serial(8):\n      for k in serial(8):\n       for l in serial(2):", "v: 8 = i, reduce w: 8 = k"),
        "func 'f', block 'B': iterations of loop 'l' accumulate the same points into one element of 'B'",
    ),
    "reduction with overlapping tiles": (
        one("init B[v] = 0.0\n            B[v] = B[v] + A[w]",
            "for i in serial(8):\n      for k in serial(3):\n       for l in serial(4):",
            "v: 8 = i, reduce w: 8 = k * 2 + l"),
        "func 'f', block 'B': binding k * 2 + l of 'w' repeats values, whose points are counted twice",
    ),
    "reduction not covered": (
        one("init B[v] = 0.0\n            B[v] = B[v] + A[w]",
            "for i in serial(8):\n      for k in serial(5):", "v: 8 = i, reduce w: 8 = k"),
        "func 'f', block 'B': binding k of 'w' covers 0..4, expected 0..7",
    ),
    "initialised inside the reduction": (
        "func f(A: float32[8], B: float32[1]):\n    for k in serial(8):\n        block B_init(u: 1 = 0):\n"
        "            B[u] = 0.0\n        block B(v: 1 = 0, reduce w: 8 = k):\n            B[v] = B[v] + A[w]\n",
        "func 'f', block 'B': 'B' is initialised again inside the reduction",
    ),
    "loop of both kinds": (
        one("init B[v] = 0.0\n            B[v] = B[v] + A[w]", iters="v: 8 = i, reduce w: 8 = i"),
        "func 'f', block 'B': loop 'i' drives both spatial and reduction variables",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_invalid_programs_are_rejected(text: str, message: str) -> None:
    with pytest.raises(VerifyError) as error:
        verify(parse(text))
    assert message in str(error.value)


def _single(store: Store, *buffers: Buffer) -> Func:
    return Func("f", buffers, (), (), Block("b", (), store))


def test_invalid_trees_without_text_are_rejected() -> None:
    a = Buffer("A", (const(4),), float32)
    other = Buffer("A", (const(5),), float32)
    cases = [
        (_single(Store(other, (const(0),), const(1.0, float32)), a),
         "block 'b': buffer 'A' is not declared, or with another shape or type"),
        (_single(Store(a, (const(0), const(0)), const(1.0, float32)), a), "buffer 'A' has 1 dimensions, got 2 indices"),
        (_single(Store(a, (Var("q"),), const(1.0, float32)), a), "block 'b': variable 'q' is not defined here"),
        (_single(Store(a, (const(0),), Binary("add", Load(a, (const(0),)), const(1))), a),
         "operands of 'add' have types float32 and int64"),
        (_single(Store(a, (const(0),), const(1.0, float32)), a, a), "its declarations: 2 buffers are named 'A'"),
    ]  # fmt: skip
    for func, message in cases:
        with pytest.raises(VerifyError) as error:
            verify(func)
        assert message in str(error.value)
    block = _single(Store(a, (const(0),), const(1.0, float32)), a).body
    with pytest.raises(VerifyError, match="a sequence: has 1 statements or a sequence inside"):
        verify(Func("f", (a,), (), (), Seq((block,))))


def test_all_problems_are_reported() -> None:
    text = one("B[v + 1] = A[v - 1]")
    with pytest.raises(VerifyError) as error:
        verify(parse(text))
    lines = str(error.value).splitlines()
    assert lines[0] == "[verify] func 'f': 2 problems"
    assert lines[1].startswith("  block 'B': index v - 1 of buffer 'A' (read, dimension 0) is not proved >= 0")
    assert sum("is not proved" in line for line in lines) == 2


def test_register_indices_are_checked_only_on_request() -> None:
    text = BAD["register indexed by a serial loop"][0]
    verify(parse(text), registers=False)


def test_untransformed_programs_are_valid() -> None:
    # benchmarks.primitives times the verifier
    verify(matmul_relu())
    verify(conv())
