"""MatMulNBits with blocks of wrong sizes, and with scales of 0 and NaN: typed errors, or ONNX Runtime's results."""

import numpy as np
import pytest
from tests.fuzz_contrib.check import check_setting_natively, model
from tests.fuzz_contrib.setting import Setting, node, normal, whole
from tests.ops.harness import EXACT, NodeCase

import tilewright
from tilewright.errors import ModelError

RNG = np.random.default_rng()
DEPTH, COLUMNS, BLOCK, BLOCKS = 48, 3, 16, 3


def product(packed: tuple[int, ...], scales: np.ndarray, zeros: int | None = None, block: int = BLOCK) -> NodeCase:
    """A product with weights of a packed shape, and with this many bytes of zero points."""
    inputs = [normal(RNG, 2, DEPTH), whole(RNG, np.uint8, *packed), scales]
    inputs += [] if zeros is None else [whole(RNG, np.uint8, zeros)]
    return node("MatMulNBits", inputs, K=DEPTH, N=COLUMNS, bits=4, block_size=block)


@pytest.mark.parametrize(
    ("packed", "scales", "options", "message"),
    [
        ((COLUMNS, BLOCKS, 4), 9, {}, r"B: expected shape \[3, 3, 8\], got \[3, 3, 4\]"),
        ((COLUMNS, 2, 8), 9, {}, r"B: expected shape \[3, 3, 8\], got \[3, 2, 8\]"),
        ((4, BLOCKS, 8), 9, {}, r"B: expected shape \[3, 3, 8\], got \[4, 3, 8\]"),
        ((COLUMNS, BLOCKS, 8), 8, {}, "scales: expected 9, got 8"),
        ((COLUMNS, BLOCKS, 8), 9, {"zeros": 5}, "zero_points: expected 6, got 5"),
        ((COLUMNS, BLOCKS, 8), 9, {"block": 24}, "block_size: expected a power of two of 16 or more, got 24"),
        ((COLUMNS, BLOCKS, 8), 9, {"block": 0}, "block_size: expected a power of two of 16 or more, got 0"),
    ],
)
def test_wrong_sizes(packed: tuple[int, ...], scales: int, options: dict[str, int], message: str) -> None:
    setting = Setting(product(packed, np.ones(scales, np.float32), **options), (1, 2, 3))
    with pytest.raises(ModelError, match=message):
        tilewright.compile(model(setting, symbolic=False), cache=False)


@pytest.mark.parametrize("scale", [0.0, np.nan])
def test_degenerate_scales(scale: float) -> None:
    """One block's scale, and all of them: NaN goes where the column reads the block, nothing else changes."""
    for position in (4, slice(None)):
        scales = np.full(COLUMNS * BLOCKS, 0.25, np.float32)
        scales[position] = scale
        case = product((COLUMNS, BLOCKS, 8), scales)
        case.inputs[0][:] = np.round(case.inputs[0])
        check_setting_natively(Setting(case, (1, 2), EXACT), symbolic=False)
