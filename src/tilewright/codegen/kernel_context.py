"""What all LLVM functions of one kernel share."""

from dataclasses import dataclass

from llvmlite import ir

from tilewright.codegen.emit_scope import DependencyAnalysis
from tilewright.codegen.thread_team import TeamEmitter
from tilewright.loops.ir import Func
from tilewright.machine import Target


@dataclass(frozen=True, slots=True)
class KernelContext:
    """What all functions of one kernel share."""

    module: ir.Module
    func: Func
    target: Target
    teams: TeamEmitter
    dependencies: DependencyAnalysis
    dead_lane_buffers: frozenset[str]
    memory_resident: frozenset[str]
