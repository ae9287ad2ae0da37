"""Shared state of all LLVM functions of one kernel."""

from dataclasses import dataclass

from llvmlite import ir

from tilewright.codegen.thread_team import TeamEmitter
from tilewright.loops.ir import Func
from tilewright.lower.dependencies import DependencyAnalysis
from tilewright.machine import Target


@dataclass(frozen=True, slots=True)
class KernelContext:
    """Shared state of all functions of one kernel.

    Attributes:
        module: that the functions belong to.
        func: the kernel in loop IR.
        target: what the code runs on.
        teams: emits the module's thread-team functions.
        dependencies: of the kernel's expressions.
        dead_lane_buffers: names of the buffers whose masked-off lanes are never read.
        memory_resident: names of the stack buffers that must stay in memory.
        thread_slices: names of the parameters whose memory only the thread that runs their blocks accesses.
    """

    module: ir.Module
    func: Func
    target: Target
    teams: TeamEmitter
    dependencies: DependencyAnalysis
    dead_lane_buffers: frozenset[str]
    memory_resident: frozenset[str]
    thread_slices: frozenset[str]
