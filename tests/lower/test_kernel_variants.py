"""Merging of several programs of one kernel: what they share, and what each has for itself."""

import pytest
from tests.lower.test_prepack_constants import N, matmul

from tilewright.expr.define import symbol
from tilewright.expr.nodes import const
from tilewright.expr.operations import select
from tilewright.loops.ir import Func
from tilewright.lower.kernel_variants import KernelVariants, MergedKernel, merge_programs, programs_of, selected_program
from tilewright.lower.prepack_constants import PrepackedKernel, prepack_constants
from tilewright.schedule.schedule import Schedule


def packed(width: int, constants: frozenset[str]) -> PrepackedKernel:
    """The product with panels of a width."""
    s = Schedule(matmul())
    s.pack("out", "a1", 1, width)
    return prepack_constants(s.func, constants)


def merged(widths: tuple[int, int], constants: frozenset[str]) -> tuple[KernelVariants, MergedKernel]:
    result = merge_programs("matmul", [packed(w, constants) for w in widths], select(N <= 3, const(0), 1), (N,))
    assert isinstance(result.code, KernelVariants)
    return result.code, result


@pytest.mark.parametrize("widths", [(4, 4), (4, 2)])
def test_constants_of_one_layout_are_stored_once(widths: tuple[int, int]) -> None:
    code, kernel = merged(widths, frozenset(["a1"]))
    shared = widths[0] == widths[1]
    assert len(kernel.prepacked) == (1 if shared else 2)
    stored = [n for own in code.arguments for n in own if n in {c.output.name for c in kernel.prepacked}]
    assert len(stored) == 2
    assert len(set(stored)) == (1 if shared else 2)
    shapes = {p.name: p.shape for p in code.params}
    for own, func in zip(code.arguments, code.programs, strict=True):
        assert [shapes[n] for n in own] == [p.shape for p in func.params]


def test_workspace_is_named_per_program() -> None:
    code, kernel = merged((4, 4), frozenset())
    names = [b.name for buffers in kernel.scratch for b in buffers]
    assert len(names) == len(set(names)) == 2
    assert {p.name for p in code.params} == {"a0", "a1", "out", *names}
    assert kernel.prepacked == ()


def test_symbols_are_those_of_the_kernel_in_order() -> None:
    code, _ = merged((4, 2), frozenset())
    assert code.symbols == (N,)
    assert len(programs_of(code)) == 2


@pytest.mark.parametrize(("size", "program"), [(1, 2), (2, 1), (3, 0), (4, 0), (0, 0)])
def test_an_index_beyond_the_programs_runs_the_first_one(size: int, program: int) -> None:
    n = symbol("n", 0)
    assert selected_program(const(3) - n, {n: size}, 3) == program
    assert selected_program(None, {n: size}, 3) == 0


def test_a_single_program_stays_a_function() -> None:
    program = packed(4, frozenset(["a1"]))
    result = merge_programs("matmul", [program], None, (N,))
    assert isinstance(result.code, Func)
    assert result.code is program.func
    assert result.scratch == (program.scratch,)
