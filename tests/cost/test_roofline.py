"""Limits: operations and bytes of kernels whose figures are known, and the level that operands come from."""

import pytest
from onnx import TensorProto, helper
from tests.driver import models

from tilewright.cost.roofline import (
    OperandUse,
    OperationCounts,
    count_operations,
    roofline_bound,
    source_levels,
    touched_bytes,
)
from tilewright.driver.compile import make_compilation
from tilewright.driver.options import CompileOptions
from tilewright.expr.nodes import const
from tilewright.machine.shipped import machine_named

MACHINE = machine_named("zen4")


def kernel(op: str, shapes: dict[str, list], out: list, constants=None, **attributes):
    """The loops of a single operator and the values of its symbols, all 6."""
    node = helper.make_node(op, [*shapes, *(constants or {})], ["y"], name="n", **attributes)
    model = models.model([node], [models.value(n, s) for n, s in shapes.items()], [models.value("y", out)], constants)
    func = make_compilation(model, CompileOptions(optimizer="rule")).kernels[-1].origin
    return func, {s: const(6) for s in func.symbols}


def test_a_multiply_add_is_two_flops_and_one_instruction() -> None:
    func, values = kernel("MatMul", {"a": ["m", 40], "b": [40, 24]}, ["m", 24])
    assert count_operations(func, values) == OperationCounts(2.0 * 6 * 40 * 24, ((32, 6.0 * 40 * 24),))
    assert sorted(touched_bytes(func, values).values()) == [4 * 6 * 24, 4 * 6 * 40, 4 * 40 * 24]


def test_functions_occupy_units_longer_than_additions() -> None:
    simple, values = kernel("Add", {"a": ["m", 8], "b": ["m", 8]}, ["m", 8])
    function, function_operands = kernel("Exp", {"a": ["m", 8]}, ["m", 8])
    added, raised = count_operations(simple, values), count_operations(function, function_operands)
    assert added.flops == raised.flops == 48
    assert raised.instructions[0][1] > added.instructions[0][1] == 48


def test_a_gathered_table_counts_only_loaded_elements() -> None:
    node = helper.make_node("Gather", ["table", "i"], ["y"], name="n")
    inputs = [models.value("table", [100000, 16]), models.value("i", ["m"], TensorProto.INT64)]
    model = models.model([node], inputs, [models.value("y", ["m", 16])])
    func = make_compilation(model, CompileOptions(optimizer="rule")).kernels[0].origin
    sizes = touched_bytes(func, {s: const(6) for s in func.symbols})
    # six rows, as many numbers of rows for every element at most, and the result
    assert sorted(sizes.values()) == [8 * 6, 4 * 6 * 16, 4 * 6 * 16]


def test_source_level_follows_the_reuse_distance() -> None:
    l1, _, l3, _ = MACHINE.levels
    small, large = OperandUse("small", l1.bytes / 4), OperandUse("large", 3.0 * l3.bytes)
    (first, second, third) = source_levels([[small], [small], [small, large]], MACHINE, 1)
    # before the first kernel the large operand of the call before was touched
    assert [k for _, k in first] == [3]
    assert [k for _, k in second] == [0]
    assert [k for _, k in third] == [0, 3]
    # with two cores there are two first caches, and the last one is shared
    middle = OperandUse("middle", 1.5 * l1.bytes)
    assert [k for _, k in source_levels([[middle]], MACHINE, 1)[0]] == [1]
    assert [k for _, k in source_levels([[middle]], MACHINE, 2)[0]] == [0]


def test_reused_memory_is_one_operand() -> None:
    l2 = MACHINE.levels[1]
    half = 0.75 * l2.bytes
    apart = source_levels([[OperandUse("a", half)], [OperandUse("b", half)]], MACHINE, 1)
    shared = source_levels([[OperandUse("a", half)], [OperandUse("a", half)]], MACHINE, 1)
    assert [k for (pair,) in apart for k in [pair[1]]] == [2, 2]
    assert [k for (pair,) in shared for k in [pair[1]]] == [1, 1]


@pytest.mark.parametrize("cores", [1, 2])
def test_the_bound_is_the_slower_of_compute_and_memory(cores: int) -> None:
    peak, memory = MACHINE.gflops(cores), MACHINE.levels[-1]
    work = OperationCounts(2e6, ((32, 1e6),))
    bound = roofline_bound(work, [(OperandUse("a", 1000.0), 0)], MACHINE, cores)
    assert (bound.by, bound.us) == ("compute", pytest.approx(2e6 / peak / 1e3))
    assert all(us == 0 for _, us in bound.memory_us)
    bound = roofline_bound(work, [(OperandUse("a", 1e8), len(MACHINE.levels) - 1)], MACHINE, cores)
    assert (bound.by, bound.us) == (memory.name, pytest.approx(1e8 / memory.gbs(cores) / 1e3))
    # what comes from memory passes every level on its way
    assert [us for _, us in bound.memory_us] == pytest.approx([1e8 / x.gbs(cores) / 1e3 for x in MACHINE.levels[1:]])
