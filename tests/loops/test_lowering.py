"""The naive program: its text, and that it is valid."""

import pytest
from tests.loops.programs import buffer, computation, conv, matmul_relu

from tilewright.errors import InternalError
from tilewright.expr.computation import Reducer
from tilewright.expr.nodes import MemoryScope, Symbol, Var
from tilewright.loops.ir import Block, For, LoopKind, blocks, walk
from tilewright.loops.lowering import lower_to_loops
from tilewright.loops.printer import show
from tilewright.names import UniqueNames
from tilewright.verify.verifier import verify

I, J = Var("i"), Var("j")  # noqa: E741 - the axes of matrices


def test_matmul_relu(golden) -> None:
    golden(show(matmul_relu()))


def test_conv(golden) -> None:
    golden(show(conv()))


@pytest.mark.parametrize("func", [matmul_relu(), conv()], ids=lambda f: f.name)
def test_structure(func) -> None:
    verify(func)
    loops = [s for s, _ in walk(func.body) if isinstance(s, For)]
    assert all(loop.kind is LoopKind.SERIAL for loop in loops)
    assert len({loop.var.name for loop in loops}) == len(loops)
    assert [b.name for b in blocks(func.body)] == [b.body.buffer.name for b in blocks(func.body)]


def test_intermediate_results_become_workspace() -> None:
    func = matmul_relu()
    assert [(b.name, b.scope) for b in func.allocs] == [("C", MemoryScope.MEMORY)]
    assert [b.name for b in func.params] == ["A", "B", "D"]


def test_names_are_unique() -> None:
    x = buffer("i", 4)
    s = Symbol("v_i", 1, 4)
    first = computation("j", {I: 4}, {}, x[I] * 2.0)
    second = computation("k", {I: 4}, {}, first.output[I] + 1.0)
    func = lower_to_loops("f", [first, second], [x, second.output], [s])
    verify(func)
    block = blocks(func.body)[0]
    assert isinstance(block, Block)
    assert block.iters[0].var.name not in ("v_i", "i", "j")
    names = UniqueNames.of(["a"])
    assert [names.fresh("a"), names.fresh("a"), names.fresh("b"), names.fresh("a")] == ["a_1", "a_2", "b", "a_3"]


def test_scalar_output() -> None:
    x = buffer("X", 4)
    total = computation("S", {}, {I: 4}, x[I], Reducer.SUM)
    func = lower_to_loops("total", [total], [x, total.output], [])
    verify(func)
    assert "init S[] = 0.0" in show(func)


def test_an_empty_list_of_stages_is_rejected() -> None:
    with pytest.raises(InternalError, match="func 'f': a function needs at least one stage"):
        lower_to_loops("f", [], [], [])


def test_a_missing_producer_is_rejected() -> None:
    x = buffer("X", 4)
    stage = computation("Y", {I: 4}, {}, x[I] * 2.0)
    with pytest.raises(InternalError, match="stage 'Y' reads 'X', which no parameter or earlier stage provides"):
        lower_to_loops("f", [stage], [stage.output], [])


def test_two_producers_of_one_buffer_are_rejected() -> None:
    x = buffer("X", 4)
    stage = computation("Y", {I: 4}, {}, x[I] * 2.0)
    with pytest.raises(InternalError, match="two stages write buffer 'Y'"):
        lower_to_loops("f", [stage, stage], [x, stage.output], [])
