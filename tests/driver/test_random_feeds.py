"""Random inputs of compiled models."""

import numpy as np
import pytest
from onnx.parser import parse_model

from tilewright.driver.compile_model import compile_model
from tilewright.driver.diagnostics.random_feeds import random_feeds
from tilewright.errors import OptionError
from tilewright.runtime.manifest import Manifest


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    """Of a model with an input of 8 bits."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (int8[64] x) => (int8[64] y) { y = Identity (x) }'
    return compile_model(parse_model(text), optimizer="rule").manifest


def test_integers_are_of_the_range_and_the_type(manifest: Manifest) -> None:
    feeds = random_feeds(manifest, {}, (100, 500), 0)
    assert feeds["x"].dtype == np.int8
    assert 100 <= feeds["x"].min() <= feeds["x"].max() == 127


@pytest.mark.parametrize("ints", [(300, 400), (-900, -129)])
def test_a_range_that_the_type_does_not_have(manifest: Manifest, ints: tuple[int, int]) -> None:
    with pytest.raises(OptionError, match=f"int8 has none of the numbers {ints[0]}..{ints[1]}"):
        random_feeds(manifest, {}, ints, 0)
