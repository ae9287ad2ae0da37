"""Names of dynamic dimensions: the model's own, `x[0]`, and the identifier of either."""

import pytest

from tilewright.driver.dimension_names import resolve_dimensions
from tilewright.errors import OptionError

DIMENSIONS = ("batch", "x[0]", "image:0[2]", "seq-len", "n0", "2d")


@pytest.mark.parametrize("name", DIMENSIONS)
def test_a_dimension_has_its_own_name(name: str) -> None:
    assert resolve_dimensions([name], DIMENSIONS, "--size") == {name: name}


@pytest.mark.parametrize(
    ("name", "dimension"),
    [("x_0", "x[0]"), ("image_0_2", "image:0[2]"), ("seq_len", "seq-len"), ("n0_", "n0"), ("v2d", "2d")],
)
def test_an_identifier_means_the_dimension_that_it_is_made_of(name: str, dimension: str) -> None:
    assert resolve_dimensions([name, "batch"], DIMENSIONS, "--size") == {name: dimension, "batch": "batch"}


def test_the_name_of_a_dimension_is_preferred_to_the_identifier_of_another_one() -> None:
    assert resolve_dimensions(["x_0", "x[0]"], ("x[0]", "x_0"), "--size") == {"x_0": "x_0", "x[0]": "x[0]"}


def test_a_misspelt_name_is_suggested() -> None:
    with pytest.raises(OptionError, match=r"no dynamic dimension 'bacth'; did you mean 'batch'\? it has batch, x"):
        resolve_dimensions(["bacth"], DIMENSIONS, "--size")


def test_unknown_names_and_two_names_of_one_dimension_are_refused() -> None:
    with pytest.raises(OptionError, match=r"--sizes: the model has no dynamic dimension 'x'; it has batch, x\[0\]"):
        resolve_dimensions(["x"], DIMENSIONS, "--sizes")
    with pytest.raises(OptionError, match="all of its sizes are fixed"):
        resolve_dimensions(["x"], (), "--sizes")
    with pytest.raises(OptionError, match=r"dimension 'x\[0\]' is given by two names"):
        resolve_dimensions(["x_0", "x[0]"], DIMENSIONS, "--sizes")
