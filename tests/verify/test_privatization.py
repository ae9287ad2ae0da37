"""Privatisation: loop-carried reads of private buffers are rejected, in hand-written programs.

Every rejected program is shown to compute another result when its iterations run independently.
"""

import numpy as np
import pytest
from tests.codegen.native import Native
from tests.verify.parallel_rows import HEAD, USE, program
from tests.verify.privatized import differs, iterations_of

from tilewright.errors import ScheduleError, VerifyError
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import LoopKind
from tilewright.loops.parser import parse
from tilewright.schedule.loop_transforms import split
from tilewright.verify.verifier import verify

"""Stores what is to come of it."""

NEXT = """
for z in serial(4):
    block N(vn: n = i, vz: 4 = z):
        T[vz{}] = A[vn, vz] + 1.0
"""
"""What the next iteration could find."""

REFUSED = {
    "another element than was written": (
        program("T: float32[2]", """
block P(p: n = i):
    T[0] = A[p, 0] * 2.0
for u in serial(8):
    block U(vu: n = i, wu: 8 = u):
        U[vu, wu] = select(vu >= 1, T[1], 0.0) + T[0]
block R(r: n = i):
    T[1] = A[r, 1] + 1.0
"""),
        "block 'U': reads T[1] of private buffer 'T', which this iteration of 'i' is not proved to have written: "
        "block 'P' before it writes T[0]",
    ),
    "more than was written": (
        program("T: float32[8]", """
for a in serial(7):
    block P(p: n = i, q: 7 = a):
        T[q] = A[p, q]
""" + USE.format("T[wu]") + """
block R(r: n = i):
    T[7] = A[r, 1] + 1.0
"""),
        "block 'U': reads T[wu] of private buffer 'T', which this iteration of 'i' is not proved to have written: "
        "block 'P' before it writes it where u < 7",
    ),
    "in some iterations only": (
        program("T: float32[8]", """
for a in serial(8):
    block P(p: n = i, q: 8 = a) where i < 3:
        T[q] = A[p, q]
""" + USE.format("T[wu]") + NEXT.format("")),
        "block 'U': reads private buffer 'T' in iterations of 'i' that do not write it: "
        "block 'P' before it writes it where i < 3",
    ),
    "in a loop that may be empty": (
        program("T: float32[8]", """
for c in serial(m):
    for a in serial(8):
        block P(p: n = i, q: 8 = a, r: m = c):
            T[q] = A[p, q] + A[p, r]
""" + USE.format("T[wu]") + NEXT.format("")),
        "block 'U': reads private buffer 'T' in iterations of 'i' that do not write it: "
        "block 'P' before it writes it where 0 < m",
    ),
    "one row less, of symbolic size": (
        program("T: float32[5]", """
for a in serial(m):
    block P(p: n = i, q: m = a):
        T[q] = A[p, q]
for b in serial(m + 1):
    block Q(o: n = i, s: m + 1 = b):
        T[s] = T[s] * 2.0
""" + USE.format("select(wu < m + 1, T[min(wu, 4)], 0.0)") + NEXT.format("")),
        "block 'Q': reads T[s] of private buffer 'T', which this iteration of 'i' is not proved to have written: "
        "block 'P' before it writes it where b < m",
    ),
    "sums of which one has no first value": (
        program("T: float32[8]", """
for a in serial(7):
    block Z(p: n = i, q: 7 = a):
        T[q] = 0.0
for c in serial(8):
    for b in serial(8):
        block S(o: n = i, s: 8 = b, reduce r: 8 = c):
            T[s] = T[s] + A[o, r]
""" + USE.format("T[wu]") + NEXT.format(" + 4")),
        "block 'S': reads T[s] of private buffer 'T', which this iteration of 'i' is not proved to have written: "
        "block 'Z' before it writes it where b < 7",
    ),
    "what a later iteration of an inner loop writes": (
        program("T: float32[8]; W: float32[]", """
block W(w: n = i):
    W[] = 0.0
for a in serial(8):
    block P(p: n = i, q: 8 = a):
        T[q] = A[p, q]
    for b in serial(8):
        block Q(o: n = i, x: 8 = a, s: 8 = b):
            W[] = W[] + T[s]
""" + USE.format("W[]")),
        "block 'Q': reads T[s] of private buffer 'T', which this iteration of 'i' is not proved to have written: "
        "block 'P' before it writes T[a]",
    ),
    "every second element": (
        program("T: float32[8]", """
for a in serial(4):
    block P(p: n = i, q: 4 = a):
        T[q * 2] = A[p, q]
""" + USE.format("T[wu]") + NEXT.format("")),
        "block 'U': reads T[wu] of private buffer 'T', which this iteration of 'i' is not proved to have written: "
        "block 'P' before it writes T[a * 2]",
    ),
    "beyond the last tile": (
        program("T: float32[8]", """
for a in serial(2):
    for b in serial(4):
        block P(p: n = i, q: 8 = a * 4 + b) where a * 4 + b < 6:
            T[q] = A[p, q]
""" + USE.format("T[wu]") + NEXT.format(" + 4")),
        "block 'U': reads T[wu] of private buffer 'T', which this iteration of 'i' is not proved to have written: "
        "block 'P' before it writes it where u < 6",
    ),
    "an element that data chooses": (
        program("T: float32[4]", """
for a in serial(2):
    block P(p: n = i, q: 2 = a):
        T[q] = A[p, q]
""" + USE.format("T[min(max(I[vu], 0), 3)]") + NEXT.format("")),
        "private buffer 'T', which this iteration of 'i' is not proved to have written: block 'P' before it writes it "
        "where ",
    ),
    "an element whose number changes in between": (
        program("T: float32[4]; K: int64[]", """
block K(k: n = i):
    K[] = 1
block P(p: n = i):
    T[min(max(K[], 0), 3)] = A[p, 0]
block L(l: n = i):
    K[] = 2
""" + USE.format("T[min(max(K[], 0), 3)]") + NEXT.format("")),
        "block 'U': reads private buffer 'T' before this iteration of 'i' wrote it",
    ),
    "a window that reaches beyond": (
        program("T: float32[9]", """
for a in serial(8):
    block P(p: n = i, q: 8 = a):
        T[q] = A[p, q]
""" + USE.format("T[wu] + T[wu + 1]") + """
block R(r: n = i):
    T[8] = A[r, 1]
"""),
        "block 'U': reads T[wu + 1] of private buffer 'T', which this iteration of 'i' is not proved to have written: "
        "block 'P' before it writes it where u + 1 < 8",
    ),
    "what another lane writes": (
        program("T: float32[8]", """
for a in vectorized(8):
    block P(p: n = i, q: 8 = a):
        T[q] = A[p, q]
    block U(vu: n = i, wu: 8 = a):
        U[vu, wu] = T[7 - wu]
"""),
        "block 'U': reads T[7 - wu] of private buffer 'T', which this iteration of 'i' is not proved to have written",
    ),
    "products of loops": (
        program("T: float32[8]", """
for a in serial(2):
    for b in serial(4):
        block P(p: n = i, q: 2 = a, s: 4 = b):
            T[q * s] = A[p, q * 4 + s]
""" + USE.format("T[wu]") + NEXT.format(" + 4")),
        "block 'U': reads T[wu] of private buffer 'T', which this iteration of 'i' is not proved to have written: "
        "block 'P' before it writes T[a * b]",
    ),
    "two parts with a gap": (
        program("T: float32[8]", """
for a in serial(3):
    block P(p: n = i, q: 8 = a):
        T[q] = A[p, q]
for b in serial(4):
    block Q(o: n = i, s: 8 = b + 4):
        T[s] = A[o, s]
""" + USE.format("T[wu]") + NEXT.format("")),
        "block 'U': reads T[wu] of private buffer 'T', which this iteration of 'i' is not proved to have written",
    ),
}  # fmt: skip


@pytest.mark.parametrize("scope", ["stack", "register"])
@pytest.mark.parametrize("name", REFUSED)
def test_loop_carried_reads_are_rejected(name: str, scope: str) -> None:
    text, message = REFUSED[name]
    text = text.replace(" in stack", f" in {scope}")
    with pytest.raises(VerifyError) as error:
        verify(parse(text), registers=False)
    assert message in str(error.value)
    assert any(differs(parse(text), "i", {"n": 9, "m": m}) for m in (0, 1, 3)), "there is no reason to refuse it"


@pytest.mark.parametrize("name", ["another element than was written", "a window that reaches beyond"])
def test_native_code_of_a_rejected_program_is_wrong(name: str) -> None:
    """Threads have stacks of their own, so that the first iteration of a thread finds nothing of the one before."""
    func = parse(REFUSED[name][0])
    rows = np.arange(72, dtype=np.float32).reshape(9, 8) + 1
    arrays = {"A": rows, "I": np.zeros(9, np.int64), "U": np.zeros((9, 8), np.float32)}
    in_order = {key: np.array(a) for key, a in arrays.items()}
    interpret(iterations_of(func, "i", LoopKind.SERIAL), in_order, {"n": 9, "m": 0})
    native = Native(func)(arrays, {"n": 9, "m": 0}, threads=3)
    assert not np.array_equal(native["U"], in_order["U"])


SUM = """
for c in serial({0}):
    for b in serial(8):
        block S(o: n = i, s: 8 = b, reduce r: {0} = c):
            init T[s] = 0.0
            T[s] = T[s] + A[o, r]
"""

ACCEPTED = {
    "all elements": program("T: float32[8]", """
for a in serial(8):
    block P(p: n = i, q: 8 = a):
        T[q] = A[p, q]
""" + USE.format("T[7 - wu]")),
    "in another order and in tiles": program("T: float32[2, 4]", """
for a in serial(4):
    for b in serial(2):
        block P(p: n = i, x: 2 = b, q: 4 = a):
            T[x, q] = A[p, x * 4 + q]
""" + USE.format("T[wu // 4, wu % 4]")),
    "digits of one loop": program("T: float32[2, 4]", """
for a in serial(8):
    block P(p: n = i, q: 8 = a):
        T[q // 4, q % 4] = A[p, q]
""" + USE.format("T[wu // 4, wu % 4] + T[wu % 2, wu // 2]")),
    "tiles of which the last is not whole": program("T: float32[8]", """
for a in serial(3):
    for b in serial(3):
        block P(p: n = i, q: 8 = a * 3 + b) where a * 3 + b < 8:
            T[q] = A[p, q]
""" + USE.format("T[wu]")),
    "tiles shifted inwards": program("T: float32[8]", """
for a in serial(3):
    for b in serial(3):
        block P(p: n = i, q: 8 = min(a * 3, 5) + b):
            T[q] = A[p, q]
""" + USE.format("T[wu]")),
    "several parts": program("T: float32[8]", """
for a in serial(3):
    block P(p: n = i, q: 8 = a):
        T[q] = A[p, q]
for b in serial(5):
    block Q(o: n = i, s: 8 = b + 3):
        T[s] = A[o, s]
""" + USE.format("T[wu]")),
    "a window": program("T: float32[9]", """
for a in serial(8):
    block P(p: n = i, q: 8 = a):
        T[q] = A[p, q]
""" + USE.format("T[wu] + select(wu < 7, T[wu + 1], 0.0)")),
    "a symbolic size": program("T: float32[5]", """
for a in serial(m + 1):
    block P(p: n = i, q: m + 1 = a):
        T[q] = A[p, q]
""" + USE.format("select(wu < m, T[min(wu, 4)], 0.0)")),
    "equal predicates": program("T: float32[8]", """
for a in serial(8):
    block P(p: n = i, q: 8 = a) where i * 8 + a < n:
        T[q] = A[p, q]
for c in serial(8):
    block Q(o: n = i, s: 8 = c) where i * 8 + c < n:
        T[s] = T[s] + 1.0
""" + USE.format("select(vu * 8 + wu < n, T[wu], 0.0)")),
    "a sum with its init": program("T: float32[8]", SUM.format(8) + USE.format("T[wu]")),
    "a sum over what may be nothing": program("T: float32[8]", SUM.format("m") + USE.format("T[wu]")),
    "a sum of an init before": program("T: float32[8]", """
for a in serial(8):
    block Z(p: n = i, q: 8 = a):
        T[q] = 0.0
for c in serial(m):
    for b in serial(8):
        block S(o: n = i, s: 8 = b, reduce r: m = c):
            T[s] = T[s] + A[o, r]
""" + USE.format("T[wu]")),
    "a sum inside another loop": program("T: float32[]", """
for u in serial(8):
    for c in serial(8):
        block S(o: n = i, s: 8 = u, reduce r: 8 = c):
            init T[] = 0.0
            T[] = T[] + A[o, r] * A[o, s]
    block U(vu: n = i, wu: 8 = u):
        U[vu, wu] = T[]
"""),
    "values that are handed on inside": program("T: float32[9]", """
block Z(z: n = i):
    T[0] = 0.0
for a in serial(8):
    block P(p: n = i, q: 8 = a):
        T[q + 1] = T[q] + A[p, q]
""" + USE.format("T[wu + 1]")),
    "what it wrote so far": program("T: float32[8]; W: float32[8]", """
for a in serial(8):
    block P(p: n = i, q: 8 = a):
        T[q] = A[p, q]
    block W(w: n = i, x: 8 = a):
        W[x] = T[x] + T[x // 2] + T[0]
""" + USE.format("W[wu]")),
    "an old value kept": program("M: float32[]; O: float32[]; L: float32[]", """
block Mi(a1: n = i):
    M[] = 0.0
block Li(b1: n = i):
    L[] = 0.0
for c in serial(2):
    block O(c1: n = i, c2: 2 = c):
        O[] = M[]
    for d in serial(4):
        block M(d1: n = i, reduce d2: 8 = c * 4 + d):
            M[] = max(M[], A[d1, d2])
    block L(e1: n = i, e2: 2 = c):
        L[] = select(O[] == M[], L[], L[] * O[] + M[])
""" + USE.format("L[]")),
    "any element that data chooses": program("T: float32[4]", """
for a in serial(4):
    block P(p: n = i, q: 4 = a):
        T[q] = A[p, q]
""" + USE.format("T[min(max(I[vu], 0), 3)]")),
    "a whole row twice": program("T: float32[8]", """
for a in serial(m):
    block P(p: n = i, q: m = a):
        T[q] = A[p, q]
for b in serial(8):
    block Q(o: n = i, s: 8 = b):
        T[s] = A[o, s] + 1.0
""" + USE.format("T[wu]")),
}  # fmt: skip


@pytest.mark.parametrize("scope", ["stack", "register"])
@pytest.mark.parametrize("name", ACCEPTED)
def test_reads_of_elements_written_in_the_same_iteration_are_accepted(name: str, scope: str) -> None:
    func = parse(ACCEPTED[name].replace(" in stack", f" in {scope}"))
    verify(func, registers=False)
    for m in (0, 1, 4):
        assert not differs(func, "i", {"n": 9, "m": m})


def test_a_reduction_over_an_outer_loop_is_loop_carried() -> None:
    """Where the outer loop does not run, its init is stored outside of the inner one."""
    func = parse(
        HEAD
        + """
    alloc T: float32[] in stack
    for c in serial(m):
        for i in parallel(n):
            block S(o: n = i, reduce r: m = c):
                init T[] = 0.0
                T[] = T[] + A[o, r]
            block U(vu: n = i, wu: 8 = 0):
                U[vu, wu] = T[]
"""
    )
    message = "block 'S': reads private buffer 'T' before this iteration of 'i' wrote it"
    with pytest.raises(VerifyError, match=message):
        verify(func)


def test_tiles_are_not_shifted_over_loop_carried_values() -> None:
    text = REFUSED["another element than was written"][0].replace(" in stack", "").replace("parallel", "serial")
    message = "block 'U' reads 'T', which a repeated iteration has changed: block 'P' before it writes T.0."
    with pytest.raises(ScheduleError, match=message):
        split(parse(text.replace("n: 5..40", "n: 8..40")), "i", 4, tail="shift_inwards")
