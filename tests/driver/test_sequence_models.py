"""Models around control flow, natively and right at several sizes: those that `benchmarks.control_flow` times."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from benchmarks.common.model_builders import Model
from benchmarks.control_flow import decoder
from tests.driver.control_flow_models import RNG, normal, same_as_onnxruntime

from benchmarks import sequence_models


def _shorter(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Another input of a model: fewer steps, shorter sequences, another image."""
    changed = dict(feeds)
    if "n" in feeds:
        changed |= {"n": np.array(3), **{k: feeds[k][..., :2, :] for k in ("k0", "v0")}}
    elif "lengths" in feeds:
        changed |= {"x": normal(9, 2, 50), "lengths": RNG.integers(1, 10, 2).astype(np.int32)}
    else:
        changed["x"] = -feeds["x"]
    return changed


@pytest.mark.parametrize(
    "make",
    [
        lambda: decoder(16, 40, 6),
        lambda: sequence_models.beam_search(16, 30, 3, 6),
        lambda: sequence_models.tagger(8, 5, 7, 3),
        lambda: sequence_models.detector(32, 2),
    ],
    ids=["decoder", "beam_search", "tagger", "detector"],
)
def test_model(make: Callable[[], Model], tmp_path: Path) -> None:
    model, feeds = make()
    same_as_onnxruntime(model, [feeds, _shorter(feeds)], tmp_path, tolerance=1e-3)
