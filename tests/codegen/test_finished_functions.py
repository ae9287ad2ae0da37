"""Functions that are text: the module has the same text as with their instructions as objects."""

import pytest
from llvmlite import ir
from tests.lower.test_kernel_variants import merged
from tests.lower.test_prepack_constants import N, matmul

from tilewright.codegen.emit_variants import emit_variants
from tilewright.codegen.finished_functions import finish_functions
from tilewright.codegen.llvm_types import I64
from tilewright.codegen.thread_team import StageLinkage, TeamEmitter
from tilewright.expr.nodes import const
from tilewright.lower.kernel_variants import KernelVariants, merge_programs
from tilewright.lower.prepack_constants import prepack_constants
from tilewright.machine import Target
from tilewright.schedule.schedule import Schedule

TARGET = Target.parse("x86-64-v3")


def text(kernel: KernelVariants, is_alone: bool) -> str:
    module = ir.Module(name="variants")
    teams = TeamEmitter(module, StageLinkage.USED)
    emit_variants(teams, kernel, TARGET, "kernel", is_alone=is_alone).linkage = "hidden"
    return str(module)


def on_threads() -> KernelVariants:
    """Two programs with parallel loops, whose bodies are functions of their own."""
    programs = []
    for factor in (2, 4):
        s = Schedule(matmul())
        outer, _ = s.split("i0", factor)
        s.parallel(outer)
        programs.append(prepack_constants(s.func, frozenset()))
    code = merge_programs("matmul", programs, const(1), (N,)).code
    assert isinstance(code, KernelVariants)
    return code


@pytest.mark.parametrize("kernel", [merged((4, 2), frozenset(["a1"]))[0], on_threads()], ids=["packed", "threads"])
def test_the_text_of_a_module_is_the_same(kernel: KernelVariants) -> None:
    alone = text(kernel, is_alone=True)
    assert alone == text(kernel, is_alone=False)
    assert alone.count("define ") >= 3


def test_declarations_and_finished_functions_stay() -> None:
    module = ir.Module(name="one")
    declared = ir.Function(module, ir.FunctionType(ir.VoidType(), []), "declared")
    function = ir.Function(module, ir.FunctionType(I64, [I64]), "twice")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    builder.ret(builder.add(function.args[0], function.args[0]))
    before = str(module)
    finish_functions([declared, function])
    finish_functions([declared, function])
    assert str(module) == before
    # attributes and linkage may still change
    function.linkage = "internal"
    assert str(module) == before.replace("define i64", "define internal i64")
    assert declared.is_declaration
