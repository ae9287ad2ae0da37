"""Division by a size that is 0 at run time: rejected in indices, harmless in values."""

import numpy as np
import pytest

import tilewright as tw

n = tw.symbol("n", 0, 64)
A = tw.placeholder((n,), "float32", "A")


def test_an_index_divided_by_a_size_that_may_be_0_is_refused() -> None:
    with pytest.raises(tw.VerifyError, match="the read of buffer 'A' divides by n, which is not proved >= 1 there"):
        tw.create_schedule(tw.compute((4,), lambda i: A[i % n], "C"))


def test_a_guarded_index_reads_nothing_where_the_size_is_0() -> None:
    k = tw.create_schedule(tw.compute((4,), lambda i: tw.select(n > 0, A[i % n], 7.0), "C")).build()
    np.testing.assert_array_equal(k(np.zeros(0, np.float32)), np.full(4, 7.0, np.float32))
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(k(x), x[[0, 1, 2, 0]])


def test_values_divided_by_a_size_of_0_are_0_and_do_not_trap() -> None:
    """Of the machine's division a divisor of 0 would end the process."""
    quotient = tw.compute((4,), lambda i: (i + 5) // n + n, "Q")
    rest = tw.compute((4,), lambda i: (i + 5) % n, "R")
    k = tw.create_schedule(quotient, rest, inputs=[A]).build()
    for size in (0, 3):
        q, r = k(np.zeros(size, np.float32))
        i = np.arange(5, 9)
        np.testing.assert_array_equal(q, i // size + size if size else 0 * i)
        np.testing.assert_array_equal(r, i % size if size else 0 * i)
