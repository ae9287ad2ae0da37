"""The verifier's limit on buffers of the stack: each alone, and all of a kernel together."""

import pytest
from tests.verify.parallel_rows import USE, program

from tilewright.errors import VerifyError
from tilewright.loops.parser import parse
from tilewright.verify.verifier import verify


def test_a_buffer_that_exceeds_the_stack_is_rejected() -> None:
    text = program(
        "T: float32[70000]",
        """
block P(p: n = i):
    T[0] = A[p, 0]
"""
        + USE.format("T[0]"),
    )
    message = (
        "buffer 'T': it takes 280000 bytes, more than the 262144 that a stack holds; "
        "leave it in memory, or compute less of it at a time"
    )
    with pytest.raises(VerifyError, match=message):
        verify(parse(text))


def test_the_stack_limit_counts_all_buffers_of_a_kernel() -> None:
    text = program(
        "T: float32[40000]; S: float32[30000]",
        """
block P(p: n = i):
    T[0] = A[p, 0]
block Q(q: n = i):
    S[0] = T[0]
"""
        + USE.format("S[0]"),
    )
    message = (
        "buffers 'T', 'S': the buffers on the stack take 280000 bytes together, more than the 262144 it holds: "
        "'T' 160000, 'S' 120000; leave it in memory"
    )
    with pytest.raises(VerifyError, match=message):
        verify(parse(text))
