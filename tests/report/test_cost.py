"""Reports of predicted times: tables and JSON whose totals are those of construction."""

import json
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.driver import models

from tilewright.driver.compilation import Compilation
from tilewright.driver.compile import make_compilation
from tilewright.driver.options import CompileOptions
from tilewright.report.construction import constructions
from tilewright.report.cost import KernelCost, data, kernel_cost, text


def product_and_softmax(rows: int | str) -> onnx.ModelProto:
    """A product with a constant, whose rows softmax normalises."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], name="mm"),
        helper.make_node("Softmax", ["y"], ["z"], name="s"),
    ]
    weight = {"w": np.ones((64, 300), np.float32)}
    return models.model(nodes, [models.value("x", [rows, 64])], [models.value("z", [rows, 300])], weight)


def compiled(rows: int | str) -> Compilation:
    """Compiled for a machine that is the same everywhere."""
    return make_compilation(product_and_softmax(rows), CompileOptions(target="x86-64-v3", machine="zen3"))


@pytest.fixture(scope="module", params=[83, "N"], ids=["static", "symbolic"])
def costs(request: pytest.FixtureRequest) -> list[tuple[float, KernelCost]]:
    """Per kernel the time by which construction ranked its program, and the report."""
    kernel_costs: list[tuple[float, KernelCost]] = []
    for c in constructions(compiled(request.param)):
        assert c.constructed is not None
        lowered = next(k for k, p in enumerate(c.programs) if p.is_lowered)
        kernel_costs.append((c.constructed.nanoseconds[lowered], kernel_cost(c)))
    return kernel_costs


def test_totals_are_those_of_construction(costs: list[tuple[float, KernelCost]]) -> None:
    assert [c.kernel for _, c in costs] == ["k0_matmul", "k1_softmax"]
    for ranked, c in costs:
        assert c.total == ranked
        totals = np.array([s.breakdown.total[0] for s in c.shapes])
        mean = np.exp(np.mean(np.log(totals + c.call_ns))) - c.call_ns if len(totals) > 1 else totals[0]
        assert mean == pytest.approx(ranked, rel=1e-12)


def test_tables_list_what_takes_time(costs: list[tuple[float, KernelCost]]) -> None:
    for _, c in costs:
        lines = text([c]).splitlines()
        assert lines[0].startswith(f"{c.kernel} by gensor for zen3: ")
        assert lines[2].startswith(f"total     {c.total / 1e3:.4g} us")
        assert ("geometric mean" in lines[2]) == (len(c.shapes) > 1)
        assert sum(line.startswith("total  ") for line in lines) == 1 + len(c.shapes)
        assert not any(" 0 us" in line for line in lines)
    product = text([costs[0][1]])
    assert "whole tiles" in product
    assert "  | execution" in product
    assert "    step loop" in product
    stages = text([costs[1][1]])
    assert all(part.name in stages for part in costs[1][1].shapes[0].breakdown.parts)


def test_json_adds_up(costs: list[tuple[float, KernelCost]]) -> None:
    for _, c in costs:
        fields: dict[str, Any] = json.loads(json.dumps(data(c)))
        assert fields["total_ns"] == c.total
        assert len(fields["shapes"]) == len(c.shapes)
        for shape in fields["shapes"]:
            total = sum(part["total_ns"] for part in shape["parts"]) + shape["packing_ns"]
            assert total == pytest.approx(shape["total_ns"], rel=1e-9)
            for part in shape["parts"]:
                core = part["core_ns"]
                compute = max(core["overlapping"].values()) + sum(core["exposed"].values())
                assert compute == pytest.approx(sum(phase["core_ns"] for phase in part["phases"]), rel=1e-9, abs=1e-9)


def test_a_kernel_of_the_rule_has_no_terms() -> None:
    (construction,) = constructions(
        make_compilation(elementwise_of_scalars(), CompileOptions(target="x86-64-v3", machine="zen3"))
    )
    cost = kernel_cost(construction)
    assert cost.program is None
    assert text([cost]).endswith("not constructed: the rule took it")
    assert data(cost)["constructed"] is False


def elementwise_of_scalars() -> onnx.ModelProto:
    """A kernel without a loop, which nothing constructs."""
    node = helper.make_node("Exp", ["x"], ["y"], name="e")
    return models.model([node], [models.value("x", [])], [models.value("y", [])], {})
