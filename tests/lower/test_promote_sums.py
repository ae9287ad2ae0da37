"""Register promotion of sums on the stack: what loops become, that they compute the same, and what is refused."""

import re

import numpy as np
import pytest

from tilewright.codegen.module import assembly, emit_llvm
from tilewright.errors import VerifyError
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Func
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.lower.lower_kernel import lower_kernel
from tilewright.lower.promote_sums import promote_sums
from tilewright.machine import Target
from tilewright.verify.promoted_sums import with_sums_in_memory
from tilewright.verify.verifier import verify

LEVELS = ("x86-64-v3", "x86-64-v4")
ROWS, COLUMNS, STEPS = 16, 64, 60

SUMS = """
func sums(A: float32[16, 60], B: float32[60, 64], Y: float32[16, 64]):
    alloc C: float32[16, 64] in stack
    for i0 in serial(16):
        for j0 in vectorized(64):
            block start(a0: 16 = i0, b0: 64 = j0):
                C[a0, b0] = 0.0
    for ko in serial(5):
        for io in serial(4):
            for jo in serial(2):
                for k in serial(3):
                    for u in unrolled(4):
                        for i in unrolled(4):
                            for j in vectorized(32):
                                block C(a: 16 = io * 4 + i, b: 64 = jo * 32 + j, reduce r: 60 = ko * 12 + k * 4 + u):
                                    C[a, b] = C[a, b] + A[a, r] * B[r, b]
    for i2 in serial(16):
        for j2 in vectorized(64):
            block Y(a2: 16 = i2, b2: 64 = j2):
                Y[a2, b2] = C[a2, b2]
"""


def operands() -> dict[str, np.ndarray]:
    rng = np.random.default_rng()
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((ROWS, STEPS), (STEPS, COLUMNS)))
    return {"A": a, "B": b, "Y": np.full((ROWS, COLUMNS), np.nan, np.float32)}


def promoted(source: str = SUMS, level: str = "x86-64-v4") -> Func:
    return promote_sums(parse(source), Target.parse(level))


def tile_names(func: Func) -> list[str]:
    return [b.name for b in func.allocs if "_sums" in b.name]


def test_a_loop_adds_up_a_tile_in_registers() -> None:
    func = promoted()
    (tile,) = (b for b in func.allocs if "_sums" in b.name)
    assert [str(n) for n in tile.shape] == ["4", "32"]
    assert str(tile.scope) == "register"
    lines = [x.strip() for x in show(func).splitlines() if tile.name in x and "=" in x and "block" not in x]
    assert [x.startswith(f"{tile.name}[") for x in lines] == [True, True, False]
    assert show(parse(show(func))) == show(func)


@pytest.mark.parametrize("level", LEVELS)
def test_promoted_sums_are_the_same(level: str) -> None:
    arrays, func = operands(), parse(SUMS)
    expected = arrays["A"] @ arrays["B"]
    for f in (func, promoted(), lower_kernel(func, Target.parse(level)).func):
        verify(f)
        arrays["Y"][:] = np.nan
        interpret(f, arrays, {})
        np.testing.assert_array_equal(arrays["Y"], expected)


def test_the_hot_loop_stores_no_sums() -> None:
    """16 steps of 8 x 3 vectors in a loop, more accesses than LLVM promotes: the multiply-adds use registers alone."""
    source = (
        SUMS.replace("60", "960").replace("64", "96").replace("jo * 32", "jo * 48")
        .replace("vectorized(32)", "vectorized(48)").replace("ko * 12 + k * 4 + u", "ko * 192 + k * 16 + u")
        .replace("k in serial(3)", "k in serial(12)").replace("u in unrolled(4)", "u in unrolled(16)")
        .replace("io in serial(4)", "io in serial(2)").replace("i in unrolled(4)", "i in unrolled(8)")
        .replace("io * 4 + i", "io * 8 + i")
    )  # fmt: skip
    target = Target.parse("x86-64-v4")
    text = assembly(emit_llvm([parse(source)], [], target), target)
    loops = re.findall(r"^(\.LBB\w+):((?:(?!^\.LBB).)*?)\bj\w+\s+\1\b", text, re.M | re.S)
    hot = max((body for _, body in loops), key=lambda body: body.count("vfmadd"))
    assert hot.count("vfmadd") >= 16 * 8 * 3
    assert not re.search(r"^\s*vmov\w+\s+%zmm\d+, .*\(", hot, re.M)


@pytest.mark.parametrize(("old", "new"), [
    ("C: float32[16, 64] in stack", "C: float32[16, 64]"),  # other threads could see it
    ("for i in unrolled(4)", "for i in serial(4)"),
    ("jo * 32 + j,", "j * 2 + jo,"),  # a tile with gaps
    ("for k in serial(3)", "for k in unrolled(3)"),
    ("A[a, r] * B[r, b]", "A[a, r] * C[0, b]"),  # the operand may be a sum
])  # fmt: skip
def test_other_loops_are_left_alone(old: str, new: str) -> None:
    assert old in SUMS
    func = parse(SUMS.replace(old, new))
    assert promote_sums(func, Target.parse("x86-64-v4")) is func


def test_a_tile_that_registers_do_not_hold_is_left_alone() -> None:
    halves = SUMS.replace("jo in serial(2)", "jo in serial(4)").replace("jo * 32", "jo * 16")
    assert tile_names(promoted(halves.replace("vectorized(32)", "vectorized(16)"), "x86-64-v3")) == ["C_sums"]
    source = SUMS.replace("i in unrolled(4)", "i in unrolled(8)").replace("io in serial(4)", "io in serial(2)")
    source = source.replace("io * 4", "io * 8")
    assert tile_names(promoted(source, "x86-64-v4")) == ["C_sums"]
    assert not tile_names(promoted(source, "x86-64-v3"))


def test_generated_code_has_promoted_sums() -> None:
    assert tile_names(lower_kernel(parse(SUMS), Target.parse("x86-64-v4")).func) == ["C_sums"]


def test_the_verifier_sees_sums_in_memory() -> None:
    func = parse(SUMS)
    assert show(with_sums_in_memory(promoted())) == show(func)
    assert with_sums_in_memory(func) is func


LOAD = "for 'C_sums.load.i' in unrolled(4)"
STORE = "for 'C_sums.store.i' in unrolled(4)"


@pytest.mark.parametrize(("old", "new"), [
    (LOAD, LOAD.replace("4", "3")),  # the sums of the last row start from what was in the registers
    (STORE, STORE.replace("4", "3")),  # and are lost
    ("'C_sums.store.0' + io * 4", "'C_sums.store.0' + (3 - io) * 4"),  # stored elsewhere
    ("'C_sums.load.0' + io * 4", "'C_sums.load.0' + (3 - io) * 4"),  # loaded from elsewhere
    ("C['C_sums.load.0' + io * 4, 'C_sums.load.1' + jo * 32]", "0.0"),  # the sums of earlier blocks are lost
    ("'C_sums.store.0' + io * 4", "'C_sums.store.0' + io * 4 + 1"),  # one row beyond the buffer
    ("+ A[a, r] * B[r, b]", "+ A[a, r] * C[a, b]"),  # reads what is not up to date
    ("= 'C_sums.load.i', ", "= 0, "),  # one row for all
    ("C_sums[a - io * 4, b - jo * 32] = C_sums[a - io * 4, b - jo * 32] +",
     "C_sums[a - io * 4 + 1, b - jo * 32] = C_sums[a - io * 4 + 1, b - jo * 32] +"),  # outside of the registers
    ("Y[a2, b2] = C[a2, b2]", "Y[a2, b2] = C[a2, b2] + C_sums[0, 0]"),  # read after the end
    ("('C_sums.load.0': 4", "('C_sums.load.0': 3"),  # the binding leaves its domain
    (LOAD, LOAD.replace("unrolled", "serial")),  # registers have no addresses
    (LOAD + ":", LOAD + " prefetching B[io * 4611686018427387904, 0]:"),  # the address wraps around
    (STORE + ":", STORE + " prefetching C_sums[0, 0]:"),
    ("+ io * 4,", "+ (io * 4611686018427387904) // 1152921504606846976,"),  # the same but for overflow
    ("+ io * 4,", "+ (io // n * n + io % n) * 4,"),  # the same but for n = 0
    ("a - io * 4,", "a - (io // n * n + io % n) * 4,"),
    ("                                    C_sums[a - io * 4",
     "                                    init C_sums[a - io * 4, b - jo * 32] = 0.0\n"
     "                                    C_sums[a - io * 4"),  # stored before the copy where the reduction is empty
])  # fmt: skip
def test_a_wrong_copy_is_refused(old: str, new: str) -> None:
    text = show(promoted()).replace("Y: float32[16, 64]", "Y: float32[16, 64]; n: 0..4")
    verify(parse(text))
    assert old in text
    func = parse(text.replace(old, new))
    with pytest.raises(VerifyError):
        verify(func)


def test_copies_that_repeat_elements_are_refused() -> None:
    """Lanes that write the same register."""
    text = show(promoted())
    copy = next(x for x in re.split(r"(?=^ +for 'C_sums.load.i')|(?=^ +for k )", text, flags=re.M) if "load.i" in x)
    repeated = " " * 16 + "for repeat in vectorized(4):\n" + re.sub(r"^", "    ", copy.rstrip("\n"), flags=re.M) + "\n"
    with pytest.raises(VerifyError, match="repeat"):
        verify(parse(text.replace(copy, repeated)))


NESTED = """
func nested(A: float32[6, 16], Y: float32[16]):
    alloc C: float32[16] in stack
    alloc D: float32[16] in stack
    alloc T: float32[16] in register
    for j0 in vectorized(16):
        block c(a0: 16 = j0):
            C[a0] = 0.0
    for j1 in vectorized(16):
        block d(a1: 16 = j1):
            D[a1] = 0.0
    for j2 in vectorized(16):
        block load(a2: 16 = j2):
            T[a2] = C[a2]
    for k in serial(3):
        for j3 in vectorized(16):
            block load2(a3: 16 = j3):
                T[a3] = D[a3]
        for l in serial(2):
            for j4 in vectorized(16):
                block sum(a4: 16 = j4, reduce r: 6 = k * 2 + l):
                    T[a4] = T[a4] + A[r, a4]
        for j5 in vectorized(16):
            block store2(a5: 16 = j5):
                D[a5] = T[a5]
    for j6 in vectorized(16):
        block store(a6: 16 = j6):
            C[a6] = T[a6]
    for j7 in vectorized(16):
        block Y(a7: 16 = j7):
            Y[a7] = C[a7] + D[a7]
"""


def test_registers_that_are_in_use_already_are_refused() -> None:
    """Renamed from the inside out, nothing would be left of the sums that `C` is given."""
    func = parse(NESTED)
    assert with_sums_in_memory(func) is func
    with pytest.raises(VerifyError):
        verify(func)
