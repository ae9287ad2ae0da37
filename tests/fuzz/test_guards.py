"""Native code that leaves an array ends its process: the guards of a campaign hold on both sides."""

import subprocess
import sys

import pytest

OUTSIDE = """
import numpy as np
from tests.codegen.native import Native
from tilewright.loops.parser import parse
func = parse('''
func f(A: int32[8], Y: int32[8]):
    for i in serial(8):
        block Y(v: 8 = i):
            Y[v] = A[v{0}]
''')
arrays = {{"A": np.arange(8, dtype=np.int32), "Y": np.zeros(8, np.int32)}}
Native(func)(arrays, at_end={1})
print("alive")
"""


@pytest.mark.parametrize(("offset", "at_end"), [(" + 1", True), (" - 1", False)])
def test_an_access_outside_is_a_crash(offset: str, at_end: bool) -> None:
    texts = [OUTSIDE.format(o, at_end) for o in (offset, "")]
    run = [subprocess.run([sys.executable, "-c", t], capture_output=True, text=True, check=False) for t in texts]
    assert run[0].returncode < 0
    assert run[1].stdout == "alive\n", run[1].stderr
