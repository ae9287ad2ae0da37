"""Programs as text: a parallel loop over rows of A, with buffers of its own."""

HEAD = "func f(A: float32[n, 8], I: int64[n], U: float32[n, 8]; n: 5..40, m: 0..4):\n"


def program(allocs: str, body: str) -> str:
    """A function whose parallel loop `i` runs `body`, which is written with no indentation."""
    lines = [f"    alloc {a} in stack\n" for a in allocs.split("; ")]
    inside = [f"        {line}\n" for line in body.strip("\n").splitlines()]
    return "".join([HEAD, *lines, "    for i in parallel(n):\n", *inside])


USE = """
for u in serial(8):
    block U(vu: n = i, wu: 8 = u):
        U[vu, wu] = {}
"""
