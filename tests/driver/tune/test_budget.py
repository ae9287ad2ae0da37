"""Budgets of a tuning as users write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.driver.tune.budget import DEFAULT_SECONDS, MAX_END_SECONDS, MIN_END_SECONDS, Budget, parse_seconds
from tilewright.errors import OptionError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("5m", 300), ("5min", 300), ("1.5h", 5400), ("1h30m", 5400), (".5s", 0.5)],
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5x", "5m3", "-3s", "1 2", "m", "1e9h", "nan"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"\[option\] budget: expected a time"):
        parse_seconds(text)


@pytest.mark.parametrize(
    "fields",
    [{"seconds": 0.0}, {"seconds": float("nan")}, {"seconds": -1.0}, {"trials": 0}, {"trials": 2.5}, {"speedup": 1.0},
     {"speedup": float("inf")}],
)  # fmt: skip
def test_impossible_budgets_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(OptionError):
        Budget(**fields)  # pyright: ignore[reportArgumentType]


@given(st.floats(0.1, 1e6))
def test_a_part_of_the_time_is_kept_for_the_end(seconds: float) -> None:
    assert MIN_END_SECONDS <= Budget(seconds).end_seconds <= MAX_END_SECONDS


def test_only_an_aim_is_limited_by_the_default_time() -> None:
    assert Budget(speedup=2.0).with_default_time.seconds == DEFAULT_SECONDS
    assert Budget(trials=5).with_default_time.seconds is None


def test_the_compilation_with_the_tuned_programs_has_its_part() -> None:
    assert Budget(100.0).without_compilation(7.0).seconds == 93.0
    assert Budget(100.0).without_compilation(90.0).seconds == 75.0
    assert Budget(trials=3).without_compilation(90.0) == Budget(trials=3)
