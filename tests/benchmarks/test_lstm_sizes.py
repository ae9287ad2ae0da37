"""The sizes of the LSTMs that `benchmarks.lstm_sizes` times."""

from benchmarks.lstm_sizes import MAX_SIZES, draw_sizes


def test_sizes_fill_their_ranges() -> None:
    sizes = draw_sizes(400, 7)
    assert all(1 <= n <= limit for row in sizes for n, limit in zip(row, MAX_SIZES, strict=True))
    for column, limit in zip(zip(*sizes, strict=True), MAX_SIZES, strict=True):
        # small sizes are as likely as large ones
        assert min(column) == 1
        assert max(column) > 0.8 * limit
        assert 0.3 < sum(n * n < limit for n in column) / len(column) < 0.7
