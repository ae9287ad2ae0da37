"""Sizes at which dynamic kernels are measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.driver.tune.draw_sizes import DRAWN_SHAPES, SizeChoice, draw_sizes, parse_sizes
from tilewright.errors import OptionError
from tilewright.expr.define import symbol

BATCH, SEQ = symbol("batch", 1, 64), symbol("seq", 2)


def test_choices_are_read() -> None:
    assert parse_sizes("batch=1:8, batch=4:1,seq=16..512,") == {
        "batch": (SizeChoice(1, 1, 8.0), SizeChoice(4, 4, 1.0)),
        "seq": (SizeChoice(16, 512),),
    }


@pytest.mark.parametrize("text", ["batch", "=3", "batch=", "batch=4..2", "batch=0", "batch=1:0", "b=x", "b=1:-2"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"\[option\] sizes: expected NAME="):
        parse_sizes(text)


def test_sizes_that_are_no_text_are_refused() -> None:
    with pytest.raises(OptionError, match=r"sizes: expected text, got dict; for example batch=1:8"):
        parse_sizes({"batch": 3})  # type: ignore[arg-type]


def test_symbols_and_sizes_that_the_model_does_not_have_are_refused() -> None:
    with pytest.raises(OptionError, match="no dynamic dimension 'height'"):
        draw_sizes([BATCH], None, parse_sizes("height=3"))
    with pytest.raises(OptionError, match=r"batch is within 1\.\.64"):
        draw_sizes([BATCH], None, parse_sizes("batch=1..65"))


@given(st.integers(0, 1000), st.integers(1, 12), st.booleans())
def test_sizes_lie_in_their_ranges(seed: int, count: int, is_chosen: bool) -> None:
    choices = parse_sizes("batch=1:8,batch=4..6,seq=16..512") if is_chosen else {}
    sizes = draw_sizes([BATCH, SEQ], None, choices, count, seed)
    assert 1 <= len(sizes.shapes) <= count
    assert sum(sizes.weights) == pytest.approx(1)
    assert len({tuple(s.values()) for s in sizes.shapes}) == len(sizes.shapes)
    for shape in sizes.shapes:
        assert shape[BATCH] in ((1, 4, 5, 6) if is_chosen else range(1, 65))
        assert 16 <= shape[SEQ] <= 512 if is_chosen else shape[SEQ] >= 2


def test_weights_decide_how_often_sizes_are_drawn() -> None:
    sizes = draw_sizes([BATCH], None, parse_sizes("batch=1:99,batch=7:1"))
    by_size = {s[BATCH]: w for s, w in zip(sizes.shapes, sizes.weights, strict=True)}
    assert by_size[1] > 0.8


def test_a_model_of_literal_sizes_has_one_empty_shape() -> None:
    assert draw_sizes([], None, {}).shapes == ({},)
    assert len(draw_sizes([BATCH, SEQ], None, {}).shapes) == DRAWN_SHAPES
