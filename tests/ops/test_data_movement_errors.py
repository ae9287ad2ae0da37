"""What operators that move data reject, and what they leave to the reference evaluator."""

import numpy as np
import pytest
from tests.ops.arrays import floats, index
from tests.ops.harness import NodeCase, define

from tilewright.errors import ShapeError, UnsupportedError
from tilewright.expr.nodes import Symbol

REFUSED = [
    ("Concat", [floats(2, 3), floats(2, 4)], {"axis": 0}, ShapeError, "input 1, dimension 1: sizes 3 and 4 differ"),
    ("Concat", [floats(2, 3), floats(2)], {"axis": 0}, ShapeError, "input 1: expected 2 dimensions, got 1"),
    ("Concat", [floats(2, 3)], {"axis": 2}, ShapeError, "axis 2 is out of range for 2 dimensions"),
    ("Concat", [floats()], {"axis": 0}, ShapeError, "input 0: expected 1 dimension or more, got 0"),
    ("Concat", [floats(2), floats(2).astype(np.float64)], {"axis": 0}, ShapeError,
     "input 1: expected type float32, got float64"),
    ("Split", [floats(5), index(2, 2)], {}, ShapeError, "split: expected sizes that add up to 5, got 4"),
    ("Split", [floats(5)], {}, ShapeError, "dimension to split: expected a multiple of 2, got 5"),
    ("Split", [floats(5), index(5)], {}, ShapeError, "split: expected 2 sizes, got 1"),
    ("Split", [floats(5)], {"num_outputs": 1}, ShapeError, "num_outputs: expected 2 or more, got 1"),
    ("Slice", [floats(5), index(0), index(1), index(0), index(0)], {}, ShapeError,
     "steps: expected a number other than 0, got 0"),
    ("Slice", [floats(5, 2), index(0, 0), index(1, 1), index(0, -2)], {}, ShapeError,
     "axes [0, -2] name a dimension twice"),
    ("Slice", [floats(5, 2), index(0, 0), index(1)], {}, ShapeError,
     "expected as many starts as ends, axes and steps, got 2, 1, 2 and 2"),
    ("Gather", [floats(5), index(1, 5)], {}, ShapeError, "index 5 is out of range for dimension 0 of size 5"),
    ("Gather", [floats(5), index(-6)], {}, ShapeError, "index -6 is out of range for dimension 0 of size 5"),
    ("Gather", [floats(5), floats(2)], {}, ShapeError, "indices: expected an integer type, got float32"),
    ("GatherElements", [floats(5), index(1)[None]], {}, ShapeError, "indices: expected 1 dimension, got 2"),
    ("GatherElements", [floats(2, 5), np.zeros((3, 1), np.int64)], {"axis": 1}, ShapeError,
     "indices, dimension 0: expected a size of at most 2, got 3"),
    ("GatherND", [floats(2), np.array(1)], {}, ShapeError, "indices: expected 1 dimension or more, got 0"),
    ("GatherND", [floats(2), np.zeros((1, 2), np.int64)], {}, ShapeError,
     "index tuples: expected 1 to 1 entries, got 2"),
    ("GatherND", [floats(2, 2), np.zeros((2, 2), np.int64)], {"batch_dims": 2}, ShapeError,
     "batch_dims: expected 0 to 1, got 2"),
    ("Pad", [floats(2), index(1, 1)], {"mode": "mirror"}, ShapeError,
     "mode: expected constant, edge, reflect, wrap, got mirror"),
    ("Pad", [floats(2), index(1, 2)], {"mode": "reflect"}, ShapeError,
     "dimension 0: expected a reflected border below 2, got 2"),
    ("Pad", [floats(2), index(1)], {}, ShapeError, "pads: expected 2 numbers, got 1"),
    ("Pad", [floats(2), index(-5, 0)], {}, ShapeError,
     "dimension 0: expected a size of at least 0, the borders leave -3"),
    ("Pad", [floats(2), index(1 << 62, 1 << 62)], {}, ShapeError,
     "pads: expected numbers of at most 2147483647, got 4611686018427387904"),
    ("Transpose", [floats(2, 3)], {"perm": [0, 0]}, ShapeError,
     "perm: expected a permutation of 2 dimensions, got [0, 0]"),
    ("DepthToSpace", [floats(1, 6, 2, 2)], {"blocksize": 2}, ShapeError,
     "channels: expected a multiple of 4, got 6"),
    ("DepthToSpace", [floats(1, 6)], {"blocksize": 2}, ShapeError, "input 0: expected 4 dimensions, got 2"),
    ("DepthToSpace", [floats(1, 4, 2, 2)], {"blocksize": 0}, ShapeError, "blocksize: expected 1 or more, got 0"),
    ("DepthToSpace", [floats(1, 4, 2, 2)], {"blocksize": 2, "mode": "X"}, ShapeError,
     "mode: expected DCR or CRD, got X"),
    ("SpaceToDepth", [floats(1, 1, 3, 2)], {"blocksize": 2}, ShapeError, "height: expected a multiple of 2, got 3"),
    ("OneHot", [index(1), np.array(2), floats(3)], {}, ShapeError,
     "input 2 (values): expected shape [2], got [3]"),
    ("Expand", [floats(3), index(2)], {}, ShapeError, "broadcast along dimension 0: sizes 3 and 2 differ"),
    ("Expand", [floats(3), index(-1)], {}, ShapeError, "shape: expected sizes of 0 or more, got [-1]"),
    ("Tile", [floats(3), index(1, 2)], {}, ShapeError, "repeats: expected 1 numbers, got 2"),
    ("Tile", [floats(3), index(-1)], {}, ShapeError, "repeats: expected numbers of at least 0, got -1"),
    ("Tile", [floats(3), index(1 << 62)], {}, ShapeError,
     "repeats: expected numbers of at most 2147483647, got 4611686018427387904"),
    ("Range", [np.array(0), np.array(3), np.array(0)], {}, ShapeError,
     "delta: expected a number other than 0, got 0"),
    ("Range", [np.array(0), np.array(-1 << 63), np.array(-1)], {}, ShapeError,
     "expected a number of elements that int64 holds, got 9223372036854775808"),
    ("EyeLike", [floats(3)], {}, ShapeError, "input 0: expected 2 dimensions, got 1"),
    ("Trilu", [floats(3)], {}, ShapeError, "input 0: expected 2 dimensions or more, got 1"),
    ("CumSum", [floats(3), index(0, 0)], {}, ShapeError, "input 1 (axis): expected one element, got 2"),
    ("CumSum", [floats(3), index(1)], {}, ShapeError, "axis 1 is out of range for 1 dimension"),
    ("OneHot", [index(1), index(2, 3), floats(2)], {}, ShapeError,
     "input 1 (depth): expected one element, got 2"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "attributes", "error", "message"), REFUSED)
def test_data_movement_rejects(op, inputs, attributes, error, message):
    with pytest.raises(error) as raised:
        define(NodeCase(op, inputs, attributes, outputs=2 if op == "Split" else 1))
    assert str(raised.value) == f"[shape] node node ({op}): {message}"


@pytest.mark.parametrize(
    ("op", "inputs"),
    [("Expand", [floats(1), index(2)]), ("Tile", [floats(1), index(2)]), ("ConstantOfShape", [index(2)])],
)
def test_a_rank_by_data_falls_back(op, inputs):
    position = 0 if op == "ConstantOfShape" else 1
    with pytest.raises(UnsupportedError) as error:
        define(NodeCase(op, inputs), constants=(), sizes={(position, 0): Symbol("rank", 1, 4)})
    assert str(error.value) == f"[unsupported] node node ({op}): input {position} depends on data"
