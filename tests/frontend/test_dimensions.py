"""Dynamic dimensions: names and ranges from the model and from the user."""

import pytest
from tests.frontend.onnx_models import model

from tilewright.errors import OptionError
from tilewright.frontend.onnx import load_onnx, parse_shape_options


def two_inputs(first: list, second: list):
    """A model of two inputs with the given dimensions: a size, a name, or None."""
    result = model("y = Relu(x)  z = Relu(w)", inputs="float[1] x, float[1] w", outputs="float y, float z")
    for value, dims in zip(result.graph.input, (first, second), strict=True):
        shape = value.type.tensor_type.shape
        del shape.dim[:]
        for dim in dims:
            new = shape.dim.add()
            if isinstance(dim, str):
                new.dim_param = dim
            elif dim is not None:
                new.dim_value = dim
    for value in result.graph.output:
        value.type.tensor_type.ClearField("shape")
    return result


def shapes_of(proto, shapes=None):
    graph = load_onnx(proto, shapes)
    return [str(v.type)[7:] for v in graph.inputs], {s.name: (s.lo, s.hi) for s in graph.symbols}


MAX = 2**24 - 1


def test_equal_names_are_one_symbol():
    shapes, ranges = shapes_of(two_inputs(["batch", 3], [7, "batch"]))
    assert shapes == ["[batch, 3]", "[7, batch]"]
    assert ranges == {"batch": (1, MAX)}


@pytest.mark.parametrize("placeholder", [None, -1, "?", "-1", "None", "none", "*", "", "unk", "_"])
def test_placeholders_are_independent(placeholder):
    shapes, ranges = shapes_of(two_inputs([placeholder, 3, placeholder], [placeholder]))
    assert shapes == ["[x_0, 3, x_2]", "[w_0]"]
    assert list(ranges) == ["x_0", "x_2", "w_0"]


def test_a_tuple_of_two_is_a_range_of_a_dimension_or_the_sizes_of_an_input():
    assert shapes_of(two_inputs(["n", 3], ["m"]), {"n": (2, 5), "m": (4, 6)})[1] == {"n": (2, 5), "m": (4, 6)}
    assert shapes_of(two_inputs(["n", "m"], ["k"]), {"x": (4, 24), "k": 2}) == (["[4, 24]", "[2]"], {})
    with pytest.raises(OptionError, match="expected 3 dimensions for input 'x'"):
        shapes_of(two_inputs(["n", "m", 1], ["k"]), {"x": (4, 24)})


def test_zero_may_be_empty():
    assert shapes_of(two_inputs([0], [2]))[1] == {"x_0": (0, MAX)}


def test_names_become_identifiers():
    graph = load_onnx(two_inputs(["p2o.Dynamic.0", "past + 1", "i0"], ["p2o_Dynamic_0", "min"]))
    assert [str(v.type)[7:] for v in graph.inputs] == ["[p2o_Dynamic_0, past_1, i0_]", "[p2o_Dynamic_0_, min_]"]
    assert graph.symbol_names == {
        "p2o_Dynamic_0": "p2o.Dynamic.0", "past_1": "past + 1", "i0_": "i0", "p2o_Dynamic_0_": "p2o_Dynamic_0",
        "min_": "min",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("2..8", (2, 8)), (" 2 .. 8 ", (2, 8)), ("2..", (2, MAX)), ("..8", (1, 8)), ("0..8", (0, 8)), ((2, 8), (2, 8)),
        ([2, 8], None), ("*", (1, MAX)), (("a", 1), None), ("2..99999999", (2, 99999999)),
    ],
)  # fmt: skip
def test_range_of_a_dimension(option, expected):
    proto = two_inputs(["batch", 3], ["batch"])
    if expected is None:
        with pytest.raises(OptionError):
            shapes_of(proto, {"batch": option})
    else:
        assert shapes_of(proto, {"batch": option}) == (["[batch, 3]", "[batch]"], {"batch": expected})


@pytest.mark.parametrize("option", [4, "4", "4..4", (4, 4)])
def test_size_of_a_dimension(option):
    assert shapes_of(two_inputs(["batch", 3], ["batch"]), {"batch": option}) == (["[4, 3]", "[4]"], {})


@pytest.mark.parametrize("key", ["x_2", "x[2]"])
def test_unnamed_dimension_by_its_place(key):
    assert shapes_of(two_inputs([None, 3, None], [1]), {key: 8})[0] == ["[x_0, 3, 8]", "[1]"]


@pytest.mark.parametrize("key", ["p.0", "p_0"])
def test_dimension_by_name_or_identifier(key):
    assert shapes_of(two_inputs(["p.0"], ["p.0"]), {key: "1..9"})[1] == {"p_0": (1, 9)}


@pytest.mark.parametrize(
    "option",
    ["1x3x32..960x*", "1,3,32..960,*", "[1, 3, 32..960, *]", [1, 3, (32, 960), None], ["1", "*", "32..960", "*"],
     (1, 3, "32..960", "?")],
)  # fmt: skip
def test_all_dimensions_of_an_input(option):
    assert shapes_of(two_inputs([None, 3, None, None], [1]), {"x": option}) == (
        ["[1, 3, x_2, x_3]", "[1]"], {"x_2": (32, 960), "x_3": (1, MAX)},
    )  # fmt: skip


def test_user_defined_names():
    proto = two_inputs([None, 3, None], [None, "s"])
    shapes, ranges = shapes_of(proto, {"x": "n=1..8,3,s", "w": ["n", "*"]})
    assert shapes == ["[n, 3, s]", "[n, s]"]
    assert ranges == {"n": (1, 8), "s": (1, MAX)}


def test_a_size_in_a_list_holds_for_the_name():
    assert shapes_of(two_inputs(["n", 3], ["n"]), {"x": [5, 3]}) == (["[5, 3]", "[5]"], {})


def test_one_dimensional_input():
    assert shapes_of(two_inputs([None], [1]), {"x": "1..8"})[1] == {"x_0": (1, 8)}


def fails(proto, shapes, message):
    with pytest.raises(OptionError) as error:
        load_onnx(proto, shapes)
    assert str(error.value) == message


def test_unknown_name():
    fails(
        two_inputs(["batch", None], ["batch"]), {"bach": 3},
        "[option] argument 'shapes': the model has no dimension or input 'bach'; did you mean 'batch'? "
        "its dynamic dimensions are: batch, x[1]; its inputs are: x, w",
    )  # fmt: skip


def test_wrong_count():
    fails(
        two_inputs(["n", 3], [1]), {"x": "1x3x4"},
        "[option] argument 'shapes': expected 2 dimensions for input 'x', got 3",
    )  # fmt: skip


def test_one_size_for_many_dimensions():
    fails(
        two_inputs(["n", 3], [1]), {"x": "1..3"},
        "[option] argument 'shapes': expected 2 dimensions for input 'x', got '1..3'; e.g. '1x3x32..960x*'",
    )  # fmt: skip


def test_many_sizes_for_one_dimension():
    fails(
        two_inputs(["n", 3], [1]), {"n": "1x3"},
        "[option] argument 'shapes': expected one size or range for dimension 'n', got '1x3'",
    )  # fmt: skip


@pytest.mark.parametrize(("option", "text"), [("1x4", "4"), ("1x1..9", "1..9"), ("1,m", "m")])
def test_fixed_dimension(option, text):
    fails(
        two_inputs(["n", 3], [1]), {"x": option},
        f"[option] argument 'shapes': dimension 1 of input 'x' is fixed to 3 in the model, got {text}; give 3, or"
        " export the model with a name (dim_param) in place of this size",
    )  # fmt: skip


def test_empty_range():
    fails(two_inputs(["n"], [1]), {"n": "9..3"}, "[option] argument 'shapes': the range 9..3 of dimension 'n' is empty")


def test_contradiction():
    fails(
        two_inputs(["n", 3], ["n"]), {"x": [5, 3], "n": "1..3"},
        "[option] argument 'shapes': dimension 'n' is given as 5 and as 1..3",
    )  # fmt: skip


@pytest.mark.parametrize("option", ["-1", "1.5", "many sizes", "0x10", 2**31, True, -3, (1, 2, 3), "", "=3", {}])
def test_values_that_are_not_sizes(option):
    with pytest.raises(OptionError, match="argument 'shapes'"):
        load_onnx(two_inputs(["n"], [1]), {"n": option})


@pytest.mark.parametrize(
    ("option", "shown"), [(2**31, 2**31), (-3, -3), ("1..99999999999", 99999999999), ((-1, 4), -1)]
)
def test_sizes_out_of_range(option, shown):
    fails(
        two_inputs(["n"], [1]), {"n": option},
        f"[option] argument 'shapes', dimension 'n': expected sizes from 0 to 2147483647, got {shown}; "
        "use 8, '1..64' or '*'",
    )  # fmt: skip


def test_command_line():
    assert parse_shape_options(["batch:1..64", "in:0:1x3x*"]) == {"batch": "1..64", "in:0": "1x3x*"}


@pytest.mark.parametrize("option", ["batch", "batch:", ":3", "batch=3"])
def test_command_line_without_a_pair(option):
    with pytest.raises(OptionError, match=r"--shape: expected NAME:SIZES, got '.*'; e\.g\. --shape batch:1\.\.64"):
        parse_shape_options([option])


def test_command_line_with_a_name_twice():
    with pytest.raises(OptionError, match="--shape: 'n' is given twice"):
        parse_shape_options(["n:3", "n:4"])


@pytest.mark.parametrize(("shapes", "shown"), [({"batch": "lots"}, "batch"), ({"x": "lots"}, "x")])
def test_misspelled_option_is_not_a_new_name(shapes, shown):
    fails(
        two_inputs(["batch"], ["s"]) if shown == "batch" else two_inputs([None], ["s"]), shapes,
        f"[option] argument 'shapes', dimension '{shown}': 'lots' is neither a size or range nor a dimension of the "
        "model; use a size (8), a range ('1..64'), '*', or the name of a dimension of equal size",
    )  # fmt: skip


def test_a_dimension_equals_another():
    assert shapes_of(two_inputs(["batch"], ["s"]), {"batch": "s"})[0] == ["[s]", "[s]"]
