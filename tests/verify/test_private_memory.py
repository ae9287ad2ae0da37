"""The verifier on private buffers: of any size for threads of a CPU, of a limited one for threads on GPU axes."""

import re

import pytest
from tests.verify.parallel_rows import USE, program

from tilewright.errors import VerifyError
from tilewright.loops.parser import parse
from tilewright.lower.expose_workspace import expose_workspace
from tilewright.verify.verifier import verify

LARGE = program(
    "T: float32[40000]; S: float32[30000]",
    """
block P(p: n = i):
    T[0] = A[p, 0]
block Q(q: n = i):
    S[0] = T[0]
"""
    + USE.format("S[0]"),
)

SYMBOLIC = program(
    "T: float32[n]",
    """
for t in serial(n):
    block P(p: n = i, v: n = t):
        T[v] = A[p, 0] + A[v, 0]
"""
    + USE.format("T[vu]"),
)


@pytest.mark.parametrize("text", [LARGE, SYMBOLIC])
def test_private_buffers_of_any_size_are_accepted_and_so_are_their_slices(text: str) -> None:
    func = parse(text)
    verify(func)
    exposed = expose_workspace(func)
    assert exposed.params != func.params
    verify(exposed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            LARGE,
            "buffer 'T': it takes 160000 bytes; the private buffers of a thread on a GPU axis may take 262144 together",
        ),
        (
            SYMBOLIC,
            "buffer 'T': it takes a size that is known only at run time; the private buffers of a thread on a GPU axis "
            "may take 262144 together",
        ),
    ],
)
def test_threads_on_gpu_axes_have_no_workspace(text: str, message: str) -> None:
    with pytest.raises(VerifyError, match=re.escape(message)):
        verify(parse(text.replace("parallel(n)", "block_x(n)")))


@pytest.mark.parametrize("text", [LARGE.replace("= T[0]", "= T[1]"), SYMBOLIC.replace("serial(n)", "serial(n - 1)")])
def test_an_iteration_reads_what_it_has_written(text: str) -> None:
    for func in (parse(text), expose_workspace(parse(text))):
        with pytest.raises(VerifyError, match=r"reads .*private buffer 'T'"):
            verify(func)


def test_a_private_buffer_that_threads_share_races() -> None:
    before = "    block B(b: 1 = 0):\n        T[1] = A[b, 1]\n    for i in"
    text = LARGE.replace("    for i in", before).replace("S[0] = T[0]", "S[0] = T[1]")
    for func in (parse(text), expose_workspace(parse(text))):
        with pytest.raises(VerifyError, match="iterations of parallel loop 'i' may write the same element"):
            verify(func)


def test_a_parameter_has_an_address() -> None:
    text = LARGE.replace("U: float32[n, 8];", "U: float32[n, 8] in register;", 1)
    with pytest.raises(VerifyError, match="a parameter has an address, got scope register"):
        verify(parse(text))
