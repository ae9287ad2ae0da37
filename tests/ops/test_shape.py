"""Shapes as tensors, reshaping, and the shape arithmetic that exporters write."""

import numpy as np
import pytest
from tests.ops.harness import NodeCase, check, define, node_attributes

from tilewright.errors import ShapeError, UnsupportedError
from tilewright.expr.computation import View
from tilewright.expr.dtype import dtype_of, float32, int64
from tilewright.expr.nodes import Buffer, Symbol, as_expr, const
from tilewright.graph.constant_values import literal_elements
from tilewright.ops.definition import Definition, OpValue
from tilewright.ops.library import OPERATORS

rng = np.random.default_rng(17)


def floats(*shape, dtype=np.float32):
    return rng.uniform(-3, 3, shape).astype(dtype)


def index(*values, dtype=np.int64):
    return np.array(values, dtype)


@pytest.mark.parametrize(
    "attributes", [{}, {"start": 1}, {"end": -1}, {"start": -2, "end": 2}, {"start": 3, "end": 1}, {"end": 9}]
)
def test_shape(attributes):
    check(NodeCase("Shape", [floats(3, 4, 5)], attributes))


def test_shape_and_size_of_a_scalar():
    check(NodeCase("Shape", [floats()], {}, opset=7))
    check(NodeCase("Size", [floats()], {}))
    check(NodeCase("Size", [floats(3, 4)], {}))


@pytest.mark.parametrize("target", [(6, 10), (-1,), (3, -1, 2), (0, -1), (0, 0, 5), (1, 3, 4, 5, 1), (-1, 60)])
def test_reshape(target):
    check(NodeCase("Reshape", [floats(3, 4, 5), index(*target)]), symbolic=False)
    check(NodeCase("Reshape", [floats(3, 4, 5), index(*target)], opset=7), symbolic=False)


def test_reshape_of_scalars_and_empty_tensors():
    check(NodeCase("Reshape", [floats(), index(1, 1)]), symbolic=False)
    check(NodeCase("Reshape", [floats(1), np.zeros(0, np.int64)]), symbolic=False)
    check(NodeCase("Reshape", [floats(0, 3), index(3, 0)], {"allowzero": 1}), symbolic=False)


@pytest.mark.parametrize("target", [(0, 0, -1), (0, -1), (-1, 5), (0, 4, -1, 5), (-1, 0, 5), (0, 2, 2, -1)])
def test_reshape_of_a_symbolic_batch(target):
    batch = Symbol("batch", 1, 64)
    if target == (-1, 0, 5):
        d, (y,) = define(NodeCase("Reshape", [floats(3, 4, 5), index(*target)]), sizes={(0, 0): batch})
        assert y.shape[0] is batch
    d, (y,) = define(NodeCase("Reshape", [floats(3, 4, 5), index(*target)]), sizes={(0, 0): batch})
    assert d.constraints == []
    check(NodeCase("Reshape", [floats(3, 4, 5), index(*target)]), symbolic=False, sizes={(0, 0): batch})


def test_reshape_is_checked_at_run_time():
    n = Symbol("n", 1, 64)
    d, (y,) = define(NodeCase("Reshape", [floats(6, 5), index(2, -1)]), sizes={(0, 0): n})
    assert str(y.shape[1]) == "n * 5 // 2"
    assert [m for _, m in d.constraints] == [
        "node node (Reshape): cannot reshape [n, 5] into [2, -1]: expected a multiple of 2 elements, got n * 5"
    ]
    d, _ = define(NodeCase("Reshape", [floats(6, 5), index(30)]), sizes={(0, 0): n})
    assert [str(c) for c, _ in d.constraints] == ["n * 5 == 30"]


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_flatten(axis):
    check(NodeCase("Flatten", [floats(3, 4, 5)], {"axis": axis}))


@pytest.mark.parametrize("axes", [None, (0,), (0, -1), (2,)])
@pytest.mark.parametrize("opset", [7, 13])
def test_squeeze(axes, opset):
    inputs, attributes = [floats(1, 3, 1, 4, 1)], {}
    if axes is not None and opset == 7:
        attributes = {"axes": [a % 5 for a in axes]}
    elif axes is not None:
        inputs.append(index(*axes))
    check(NodeCase("Squeeze", inputs, attributes, opset=opset))


def test_squeeze_without_axes_keeps_symbolic_sizes():
    d, (y,) = define(NodeCase("Squeeze", [floats(1, 3)]), sizes={(0, 1): Symbol("n", 1, 9)})
    assert [str(n) for n in y.shape] == ["n"]
    assert [m for _, m in d.constraints] == [
        "node node (Squeeze): dimension 1 without axes: expected a size other than 1, got 1"
    ]


@pytest.mark.parametrize("axes", [(0,), (0, 3), (-1,), (3, 0), (1, -1)])
@pytest.mark.parametrize("opset", [7, 13])
def test_unsqueeze(axes, opset):
    if opset == 7:
        check(NodeCase("Unsqueeze", [floats(3, 4)], {"axes": sorted(a % (2 + len(axes)) for a in axes)}, opset=opset))
    else:
        check(NodeCase("Unsqueeze", [floats(3, 4), index(*axes)], opset=opset))


def test_reshapes_are_views():
    for op, inputs in (
        ("Reshape", [floats(3, 4), index(2, 6)]), ("Flatten", [floats(3, 4, 2)]), ("Squeeze", [floats(1, 3)]),
        ("Unsqueeze", [floats(3), index(0)]),
    ):  # fmt: skip
        d, _ = define(NodeCase(op, inputs))
        assert [type(s) for s in d.stages] == [View]


class Chain:
    """Applies operators to operands one after the other, as the lowering of a graph does."""

    def __init__(self):
        self.count = 0
        self.constraints = []

    def tensor(self, *shape, dtype=float32):
        self.count += 1
        return OpValue(Buffer(f"t{self.count}", tuple(as_expr(s) for s in shape), dtype))

    def constant(self, value, dtype=np.int64):
        array = np.asarray(value, dtype)
        operand = self.tensor(*array.shape, dtype=dtype_of(array.dtype))
        return OpValue(operand.buffer, literal_elements(array))

    def __call__(self, op, *operands, opset=18, outputs=1, **attributes):
        self.count += 1
        operands = [o if isinstance(o, OpValue) or o is None else self.constant(o) for o in operands]
        d = Definition(op, f"n ({op})", opset, operands, node_attributes(op, attributes), f"b{self.count}", outputs)
        result = OPERATORS["", op](d)
        self.constraints += d.constraints
        return result[0] if isinstance(result, tuple) and outputs == 1 else result


BATCH, SEQUENCE = Symbol("batch", 1, 64), Symbol("sequence", 1, 512)


def shape_of(x):
    return [str(n) for n in x.shape]


@pytest.mark.parametrize("opset", [11, 13])
def test_view_of_torch(opset):
    """Shape -> Gather -> Unsqueeze -> Concat -> Reshape: splitting attention heads."""
    do = Chain()
    x = do.tensor(BATCH, SEQUENCE, 384)

    def size(axis):
        one = do("Gather", do("Shape", x), axis, axis=0)
        return do("Unsqueeze", one, axes=[0], opset=11) if opset == 11 else do("Unsqueeze", one, [0])

    target = do("Concat", size(0), size(1), [12], [32], axis=0)
    y = do("Reshape", x, target)
    assert shape_of(y) == ["batch", "sequence", "12", "32"]
    back = do("Reshape", do("Transpose", y, perm=[0, 2, 1, 3]), do("Concat", size(0), [12], [-1], [32], axis=0))
    assert shape_of(back) == ["batch", "12", "sequence", "32"]
    assert do.constraints == []


def test_view_of_the_dynamo_exporter():
    """Shape(start, end) -> Concat -> Slice of it -> Reshape with allowzero, a flattened batch and back."""
    do = Chain()
    x = do.tensor(BATCH, 12, SEQUENCE, 32)
    batch, length = do("Shape", x, start=0, end=1), do("Shape", x, start=2, end=3)
    flat = do("Mul", batch, [12])
    y = do("Reshape", x, do("Concat", flat, length, [32], axis=0), allowzero=1)
    assert shape_of(y) == ["batch * 12", "sequence", "32"]
    whole = do("Shape", x)
    head, tail = do("Slice", whole, [0], [2]), do("Slice", whole, [-1], [9223372036854775807])
    z = do("Reshape", y, do("Concat", head, do("Slice", whole, [-2], [-1]), tail, axis=0))
    assert shape_of(z) == ["batch", "12", "sequence", "32"]
    assert do.constraints == []


@pytest.mark.parametrize("to", [6, 7])
def test_paddle_reshape_through_casts(to):
    """Paddle: Shape -> Cast(int32) -> Slice -> Concat with int32 literals -> Cast(int64) -> Reshape."""
    do = Chain()
    x = do.tensor(BATCH, 120, 1, SEQUENCE)
    shape = do("Cast", do("Shape", x), to=to)
    first = do("Slice", shape, do.constant([0]), do.constant([1]), do.constant([0]))
    constant = do.constant([-1, 120], np.int32 if to == 6 else np.int64)
    target = do("Cast", do("Concat", first, constant, axis=0), to=7)
    y = do("Reshape", do("Transpose", x, perm=[0, 2, 3, 1]), target)
    assert shape_of(y) == ["batch", "sequence", "120"]
    assert do.constraints == []


def test_resize_sizes_through_floating_point():
    """Shape -> Slice -> Cast -> Mul(2.0) -> Floor -> Cast -> Concat."""
    do = Chain()
    height, width = Symbol("h", 1, 4096), Symbol("w", 1, 4096)
    x = do.tensor(1, 3, height, width)
    sizes = do("Cast", do("Slice", do("Shape", x), [2], [4], [0]), to=1)
    for factor, expected in ((2.0, ["h * 2", "w * 2"]), (0.5, ["h // 2", "w // 2"])):
        scaled = do("Cast", do("Floor", do("Mul", sizes, do.constant([factor, factor], np.float32))), to=7)
        target = do("Concat", do("Slice", do("Shape", x), [0], [2]), scaled, axis=0)
        assert [str(v) for v in target.known_elements] == ["1", "3", *expected]
    halves = do("Cast", do("Ceil", do("Div", sizes, do.constant([2.0], np.float32))), to=7)
    assert [str(v) for v in halves.known_elements] == ["(h + 1) // 2", "(w + 1) // 2"]


def test_integer_arithmetic_on_sizes():
    do = Chain()
    n = do("Gather", do("Shape", do.tensor(SEQUENCE, 4)), 0, axis=0)
    cases = [
        ("Div", (n, 2), "sequence // 2"), ("Mod", (n, 8), "sequence % 8"), ("Sub", (n, 1), "sequence - 1"),
        ("Mul", (n, n), "sequence * sequence"), ("Max", (n, 1), "sequence"), ("Min", (n, 512), "sequence"),
        ("Neg", (n,), "sequence * (-1)"), ("Add", (do("Mul", n, 2), n), "sequence * 3"),
        ("Div", (do("Mul", n, 6), 3), "sequence * 2"),
    ]  # fmt: skip
    for op, operands, expected in cases:
        assert str(do(op, *operands).known_elements[0]) == expected, op
    assert (
        str(do("ReduceProd", do("Shape", do.tensor(BATCH, 3, SEQUENCE)), keepdims=0).known_elements[0])
        == "batch * sequence * 3"
    )
    assert do("Equal", n, 0).known_elements[0].value is False
    assert str(do("Squeeze", do("Unsqueeze", n, [0]), [0]).known_elements[0]) == "sequence"


def test_causal_mask_of_transformers():
    """Range, Unsqueeze, LessOrEqual, Expand and Where over symbolic lengths, without any constraint left."""
    do = Chain()
    ids = do.tensor(BATCH, SEQUENCE, dtype=int64)
    length = do("Gather", do("Shape", ids), 1, axis=0)
    positions = do("Range", 0, length, 1)
    assert shape_of(positions) == ["sequence"]
    mask = do("LessOrEqual", do("Unsqueeze", positions, [0]), do("Unsqueeze", positions, [1]))
    assert shape_of(mask) == ["sequence", "sequence"]
    batch = do("Unsqueeze", do("Gather", do("Shape", ids), 0, axis=0), [0])
    one = do("Unsqueeze", length, [0])
    target = do("Concat", batch, [1], one, one, axis=0)
    expected = do("Where", do("Equal", target, [-1, -1, -1, -1]), do("ConstantOfShape", [4], value=_ones()), target)
    assert [str(v) for v in expected.known_elements] == ["batch", "1", "sequence", "sequence"]
    full = do("Expand", mask, expected)
    assert shape_of(full) == ["batch", "1", "sequence", "sequence"]
    low = do("Where", full, do.constant(0.0, np.float32), do.constant(-1e9, np.float32))
    scores = do("Add", do.tensor(BATCH, 12, SEQUENCE, SEQUENCE), low)
    assert shape_of(scores) == ["batch", "12", "sequence", "sequence"]
    assert do.constraints == []


def _ones():
    import onnx

    return onnx.numpy_helper.from_array(np.ones(1, np.int64))


def test_position_ids_sliced_from_a_table():
    do = Chain()
    length = do("Shape", do.tensor(BATCH, SEQUENCE, dtype=int64), start=1, end=2)
    table = do.tensor(1, 512, dtype=int64)
    assert shape_of(do("Slice", table, [0], length, [1])) == ["1", "sequence"]
    start = do("Sub", [512], length)
    assert shape_of(do("Slice", table, start, [512], [1])) == ["1", "sequence"]


def test_flatten_of_a_pooled_image_with_symbolic_size():
    do = Chain()
    height = Symbol("h", 32, 1024)
    x = do.tensor(BATCH, 512, height // 32, 7)
    batch = do("Slice", do("Shape", x), [0], [1])
    assert shape_of(do("Reshape", x, do("Concat", batch, [-1], axis=0))) == ["batch", "h // 32 * 3584"]
    assert shape_of(do("Flatten", x)) == ["batch", "h // 32 * 3584"]


def test_range_of_floating_point_sizes():
    do = Chain()
    length = do("Cast", do("Gather", do("Shape", do.tensor(SEQUENCE)), 0, axis=0), to=1)
    steps = do("Range", do.constant(0.0, np.float32), length, do.constant(1.0, np.float32))
    assert shape_of(steps) == ["sequence"]
    with pytest.raises(UnsupportedError, match="the length of a range of symbolic floating-point limits"):
        do("Range", do.constant(0.5, np.float32), do("Sqrt", length), do.constant(0.3, np.float32))


def test_scale_by_a_symbolic_size_emits_no_stage():
    """Attention scales computed from shapes end up inside the consumer's body."""
    do = Chain()
    size = do("Cast", do("Gather", do("Shape", do.tensor(BATCH, 64)), 1, axis=0), to=1)
    scale = do("Div", do.constant(1.0, np.float32), do("Sqrt", size))
    assert scale.known_elements == (const(0.125, float32),)


REFUSED = [
    ("Reshape", [floats(2, 3), index(4, 2)], {}, "cannot reshape [2, 3] into [4, 2]: expected 6 elements, got 8"),
    (
        "Reshape",
        [floats(2, 3), index(4, -1)],
        {},
        "cannot reshape [2, 3] into [4, -1]: expected a multiple of 4 elements, got 6",
    ),
    ("Reshape", [floats(2, 3), index(-1, -1)], {}, "shape [-1, -1]: expected at most one -1, got 2"),
    ("Reshape", [floats(2, 3), index(-2, 3)], {}, "shape: expected -1 or more, got -2"),
    ("Reshape", [floats(2, 3), index(2, 3, 0)], {}, "shape [2, 3, 0] copies dimension 2, the input has 2"),
    ("Reshape", [floats(0, 3), index(0, -1)], {}, "cannot reshape [0, 3] into [0, -1]: -1 together with a size of 0"),
    ("Flatten", [floats(2, 3)], {"axis": 3}, "axis 3 is out of range for 2 dimensions"),
    ("Squeeze", [floats(2, 3), index(0)], {}, "dimension 0: expected size 1, got 2"),
    ("Squeeze", [floats(2, 3), index(4)], {}, "axis 4 is out of range for 2 dimensions"),
    ("Unsqueeze", [floats(2, 3), index(0, 0)], {}, "axes [0, 0] name a dimension twice"),
    ("Unsqueeze", [floats(2, 3), index(3)], {}, "axis 3 is out of range for 3 dimensions"),
    ("ConstantOfShape", [index(2, -1)], {}, "shape: expected sizes of 0 or more, got [2, -1]"),
]


@pytest.mark.parametrize(("op", "inputs", "attributes", "message"), REFUSED)
def test_shape_operators_reject(op, inputs, attributes, message):
    with pytest.raises(ShapeError) as error:
        define(NodeCase(op, inputs, attributes), constants=(0,) if op == "ConstantOfShape" else None)
    assert str(error.value) == f"[shape] node node ({op}): {message}"


def test_a_rank_by_data_falls_back():
    with pytest.raises(UnsupportedError) as error:
        define(NodeCase("Reshape", [floats(2, 3), index(6)]), constants=(), sizes={(1, 0): Symbol("rank", 1, 4)})
    assert str(error.value) == "[unsupported] node node (Reshape): input 1 depends on data"
