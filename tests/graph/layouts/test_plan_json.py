"""Layout plans as JSON: round trips, all problems at once, the published schema, the command line."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.cli.command import run
from tests.driver import models

import tilewright
from tilewright.driver.compile import make_compilation
from tilewright.driver.options import CompileOptions
from tilewright.errors import LayoutError
from tilewright.expr.nodes import Symbol
from tilewright.graph.layouts.plan import Choice, Plan, Variant
from tilewright.graph.layouts.plan_json import from_data, read_plan, schema, to_data
from tilewright.layout.basic import Reorder, Split

SCHEMA = Path(__file__).parents[3] / "docs" / "layouts.schema.json"
BLOCKED = (Split(1, (2, 8)), Reorder((0, 1, 3, 4, 2)))


def network() -> onnx.ModelProto:
    """Two convolutions and an activation."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Conv", ["b", "w2"], ["y"], name="conv2"),
    ]
    weights = {"w1": models.array(1, 16, 3, 3, 3), "w2": models.array(2, 8, 16, 1, 1)}
    return models.model(nodes, [models.value("x", [1, 3, 10, 12])], [models.value("y", [1, 8, 10, 12])], weights)


def test_round_trip() -> None:
    n = Symbol("N", 1, 64)
    plan = Plan(
        {"a": Choice(BLOCKED, (None, ())), "b": Choice(None, ((Split(0, (n, 4)),),)), "c": Choice()}, Variant.BACKWARD
    )
    data = json.loads(json.dumps(to_data(plan)))
    assert from_data(data) == plan
    assert data["symbols"] == {"N": [1, 64]}
    assert data["layouts"]["a"]["output"] == [["split", 1, [2, 8]], ["reorder", [0, 1, 3, 4, 2]]]


def test_what_inspect_prints_can_be_edited_and_fed_back(tmp_path, capsys) -> None:
    onnx.save(network(), tmp_path / "m.onnx")
    plan = json.loads(run(capsys, "inspect", tmp_path / "m.onnx", "--layout-plan", "--json")[1])["layouts"]["plan"]
    nothing = {"output": None, "operands": [None, None]}
    assert plan["layouts"] == {"conv1": nothing, "conv2": nothing}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    # a plan of layouts excludes fused chains
    plain = make_compilation(network(), CompileOptions(fusion="unfused"))
    assert [
        [p.trace for p in k.programs]
        for k in make_compilation(network(), CompileOptions(layouts=read_plan(file))).kernels
    ] == [[p.trace for p in k.programs] for k in plain.kernels]
    plan["layouts"]["conv1"]["output"] = [["split", 1, [2, 8]], ["reorder", [0, 1, 3, 4, 2]]]
    file.write_text(json.dumps(plan))
    code, out, _ = run(capsys, "inspect", tmp_path / "m.onnx", "--layout-plan", "--layouts", file, "--json")
    shown = json.loads(out)["layouts"]
    assert code == 0
    assert shown["plan"] == plan
    assert any("conv1" in line for line in shown["text"])
    assert run(capsys, "compile", tmp_path / "m.onnx", "-o", tmp_path / "m.tw", "--layouts", file)[0] == 0
    x = np.random.default_rng(1).standard_normal((1, 3, 10, 12)).astype(np.float32)
    expected = tilewright.compile(network())(x)
    np.testing.assert_allclose(tilewright.load(tmp_path / "m.tw")(x), expected, rtol=1e-4, atol=1e-4)


def test_all_problems_of_a_file_are_listed(tmp_path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({
        "format": 2, "variant": "most", "colour": 1, "symbols": {"N": [1]},
        "layouts": {
            "conv1": {"output": [["split", 1], ["twist"], 3], "operands": 5, "more": 1},
            "conv2": {"output": "blocked", "operands": [None, [["reorder", ["a"]]]]},
            "conv3": [],
        },
    }))  # fmt: skip
    with pytest.raises(LayoutError) as error:
        read_plan(file)
    text = str(error.value)
    assert f"layouts file '{file}': 12 problems" in text
    for line in (
        "plan: there is no field 'colour'; fields are format, variant, symbols, layouts",
        "field 'format': expected 1, got 2",
        "field 'variant': expected one of full, adjacent, forward, backward, got 'most'",
        "field 'symbols', symbol 'N': expected two integers or null, got [1]",
        "node 'conv1': there is no field 'more'; fields are output, operands",
        "node 'conv1', operands: expected a list of layouts, got 5",
        "node 'conv1', output, primitive 0: expected split(dim, factors), got 1 arguments",
        "node 'conv1', output, primitive 1: there is no primitive 'twist'",
        "node 'conv1', output, primitive 2: expected a list, got 3",
        "node 'conv2', output: expected a list of primitives or null, got 'blocked'",
        "node 'conv2', operands[1], primitive 0, order of reorder: expected an integer, got 'a'",
        "node 'conv3': expected an object, got []",
    ):
        assert line in text


def test_all_invalid_numbers_of_a_file_are_listed() -> None:
    output = [
        ["split", -1, [2, 0]], ["split", 0, []], ["fuse", 0, 0], ["reorder", [0, 2]], ["pad", 1, -1, "N - 40"],
        ["unpad", 0, 0, -2], ["unfold", 0, 2, 4], ["fold", -1, 3, 0, -5], ["store_at", "b", [-3], 0],
        ["split", "a", "b"],
    ]  # fmt: skip
    symbols = {"N": [1, 64], "M": [64, 1], "K": [-2, None], "L": ["a", 3]}
    with pytest.raises(LayoutError) as error:
        from_data({"format": 1, "symbols": symbols, "layouts": {"conv1": {"output": output}}})
    actual = str(error.value).splitlines()
    assert [*actual[1:-1], actual[-1].partition(";")[0]] == [
        "  field 'symbols', symbol 'M': expected a lower end that is not above the upper one, got [64, 1]",
        "  field 'symbols', symbol 'K': expected ends of at least 0, got [-2, None]",
        "  field 'symbols', symbol 'L': expected two integers or null, got ['a', 3]",
        *(f"  node 'conv1', output, primitive {line}" for line in (
            "0, dim of split: expected at least 0, got -1",
            "0, factors[1] of split: expected at least 1, got 0",
            "1, factors of split: expected at least one factor, got none",
            "2, count of fuse: expected at least 1, got 0",
            "3, order of reorder: expected a permutation of 0..1, got (0, 2)",
            "4, before of pad: expected at least 0, got -1",
            "4, after of pad: expected at least 0, got N - 40",
            "5, after of unpad: expected at least 0, got -2",
            "6, stride of unfold: expected at most the tile size 2, got 4",
            "7, dim of fold: expected at least 0, got -1",
            "7, stride of fold: expected at least 1, got 0",
            "7, size of fold: expected at least 0, got -5",
            "8, other_shape[0] of store_at: expected at least 0, got -3",
            "9, dim of split: expected an integer, got 'a'",
            "9, factors of split: expected a list, got 'b'",
        )),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"conv9": {}}, "layouts['conv9']: there is no convolution or matrix product of this name"),
        ({"conv1": {"output": [["split", 1, [3, 5]]]}}, "node conv1 (Conv)"),
        ({"conv1": {"operands": [None, None, []]}}, "node conv1 (Conv): expected layouts of at most 2 operands"),
    ],
)
def test_plans_that_do_not_fit_the_model(plan, message, tmp_path, capsys) -> None:
    onnx.save(network(), tmp_path / "m.onnx")
    (tmp_path / "plan.json").write_text(json.dumps({"format": 1, "layouts": plan}))
    options = ["-o", tmp_path / "m.tw", "--layouts", tmp_path / "plan.json"]
    code, _, err = run(capsys, "compile", tmp_path / "m.onnx", *options)
    assert code == 1
    assert f"[layout] {message}" in err


@pytest.mark.parametrize(("content", "message"), [
    (None, "cannot be read"), ("{", "is not JSON"),
    ("[" * 100_000, "is not JSON: it is nested too deeply"),
    ('{"format": 1, "layouts": {"a": {}, "a": {"output": []}}}', "is not JSON: the field 'a' appears twice"),
    ('{"format": true, "layouts": {}}', "1 problem\n  field 'format': expected 1, got True"),
    ('{"format": 1.0, "layouts": {}}', "1 problem\n  field 'format': expected 1, got 1.0"),
    ('{"format": 1, "layouts": {"a": {"output": [["split", 1, ["' + "(" * 4000 + '"]]]}}}',
     r"1 problem\n  node 'a', output, primitive 0, factors of split: expected an expression \(it is nested too"),
])  # fmt: skip
def test_files_that_cannot_be_read(content, message, tmp_path) -> None:
    file = tmp_path / "plan.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(LayoutError, match=f"layouts file '.*plan.json': {message}"):
        read_plan(file)


def test_the_published_schema(request) -> None:
    text = json.dumps(schema(), indent=2) + "\n"
    if request.config.getoption("--update-golden"):
        SCHEMA.write_text(text)
    assert SCHEMA.read_text() == text
