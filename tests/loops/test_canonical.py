"""Canonical names: equal up to names gives equal text; anything that matters changes it."""

import subprocess
import sys

import pytest
from tests.loops.programs import conv, matmul_relu

from tilewright.expr.nodes import Symbol
from tilewright.loops.canonical import canonicalized
from tilewright.loops.ir import Func
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.verify.verifier import verify

TEXT = """
func gemm(A: float32[batch, seq, 8], B: float32[8, seq], C: float32[batch, seq]; batch: 1..4, seq: 1..9, unused: 1..2):
    alloc scratch: float32[4]
    alloc tmp: float32[batch, seq]
    for a in parallel(batch * seq):
        for k in serial(8):
            block tmp(va: batch = a // seq, vb: seq = a % seq, reduce vk: 8 = k):
                init tmp[va, vb] = 0.0
                tmp[va, vb] = tmp[va, vb] + A[va, vb, vk] * B[vk, vb]
    for x in serial(batch):
        for y in serial(seq):
            block C(vx: batch = x, vy: seq = y):
                C[vx, vy] = max(tmp[vx, vy], 0.0)
"""

RENAMED = """
func other(x: float32[z, b, 8], w: float32[8, b], y: float32[z, b]; b: 1..9, z: 1..4):
    alloc acc: float32[z, b]
    alloc spare: float32[4]
    for outer in parallel(b * z):
        for inner in serial(8):
            block first(p: z = outer // b, q: b = outer % b, reduce r: 8 = inner):
                init acc[p, q] = 0.0
                acc[p, q] = acc[p, q] + x[p, q, r] * w[r, q]
    for zz in serial(z):
        for bb in serial(b):
            block second(s: z = zz, t: b = bb):
                y[s, t] = max(acc[s, t], 0.0)
"""


def canonical_text(func: Func) -> str:
    """What is equal for functions that are equal up to names."""
    return show(canonicalized(func).func)


def test_text(golden) -> None:
    golden(canonical_text(parse(TEXT)))


def test_equal_up_to_names() -> None:
    one, two = canonicalized(parse(TEXT)), canonicalized(parse(RENAMED))
    assert one.func == two.func
    assert canonical_text(parse(TEXT)) == canonical_text(parse(RENAMED))
    assert [v.name for v in one.symbols] == ["batch", "seq"]
    assert [v.name for v in two.symbols] == ["z", "b"]
    assert [(v.lo, v.hi) for v in one.func.symbols] == [(1, 4), (1, 9)]


@pytest.mark.parametrize("func", [matmul_relu(), conv(), parse(TEXT)], ids=lambda f: f.name)
def test_canonical_functions_are_valid_and_canonical(func) -> None:
    again = canonicalized(func)
    verify(again.func)
    assert canonicalized(again.func).func == again.func
    assert parse(show(again.func)) == again.func


@pytest.mark.parametrize(("old", "new"), [
    ("batch: 1..4", "batch: 1..5"), ("+ A[", "- A["), ("parallel", "serial"), ("0.0)", "1.0)"), ("0.0)", "-0.0)"),
    ("B: float32[8, seq]", "B: float32[9, seq]"), ("float32[4]", "float32[5]"), ("float32[4]", "float32[4] in stack"),
    ("vb: seq = a % seq", "vb: seq = a % seq + 0"), ("reduce vk", "vk"),
])  # fmt: skip
def test_what_matters_changes_the_text(old: str, new: str) -> None:
    changed = TEXT.replace(old, new)
    assert changed != TEXT
    same = new.endswith("+ 0")  # the same value is the same kernel
    assert (canonical_text(parse(changed)) == canonical_text(parse(TEXT))) is same


def test_parameters_keep_their_order() -> None:
    func = canonicalized(matmul_relu()).func
    assert [str(p) for p in func.params] == ["p0: float32[s0, 64]", "p1: float32[64, 32]", "p2: float32[s0, 32]"]
    assert func.symbols == (Symbol("s0", 1, 512),)


def test_texts_are_equal_in_another_process() -> None:
    """Hashes of strings differ between processes; these must not."""
    code = "from tests.loops.test_canonical import *; print(canonical_text(parse(TEXT)), canonical_text(conv()))"
    found: set[str] = set()
    for seed in ("1", "2"):
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": "."}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
        found.add(done.stdout)
    assert found == {f"{canonical_text(parse(TEXT))} {canonical_text(conv())}\n"}
