"""The result of a compilation on every level, from the graph to the artifact."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.codegen import KernelSymbol, assembly, compile_object, emit_entry_module, emit_llvm
from tilewright.codegen.step_tree import StepTree
from tilewright.driver.artifact.bodies import CompiledBody
from tilewright.driver.artifact.make_step_tree import make_step_tree
from tilewright.driver.artifact.segments import PlannedSegment
from tilewright.driver.build import Build
from tilewright.driver.considered_chain import ConsideredChain
from tilewright.driver.kernel_build.build_kernel import kernel_code, kernel_symbol
from tilewright.driver.kernel_build.kernel_builds import ConstructionCounts
from tilewright.driver.kernel_build.kernels import BoundUnit, CompiledKernel, distinct_kernels
from tilewright.gc_policy import raised_gc_threshold
from tilewright.graph.alternatives import Evaluation
from tilewright.graph.ir import Graph
from tilewright.graph.layouts.plan import Plan
from tilewright.graph.layouts.propagate import Propagation
from tilewright.graph.partition import Partition
from tilewright.graph.program import Program
from tilewright.machine import Target
from tilewright.runtime import Artifact
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.object_archive import make_archive

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Compilation:
    """A model on every level, before object code.

    Attributes:
        graph: the graph after the graph passes.
        lowered: tensor expressions as the operators define them.
        layout_plan: the layouts that the user chose.
        laid_out: tensor expressions over stored tensors; None without a layout plan.
        alternatives: equivalent stages that were considered for parts of the program.
        chains: chains of contractions that were considered for kernels of their own.
        program: tensor expressions after inlining, which the partition groups.
        partition: the program grouped into kernels.
        target: the target of the generated code.
        build: the optimizer and the machine that it constructs programs for.
        units: kernels bound to functions, views, fallbacks and control flow, in order of execution.
        bodies: of control flow, by the program that the step holds; each before those inside it.
        constructions: how many kernels the optimizer worked on.
        segments: native entries of the model's own steps with their memory plans.
        body_segments: native entries of the bodies.
        manifest: the artifact's description of itself.
        weights: arrays of the artifact by name.
        weight_sources: arrays of equal elements that they are copies of, or they themselves, by name.
    """

    graph: Graph
    lowered: Program
    layout_plan: Plan
    laid_out: Propagation | None
    alternatives: tuple[Evaluation, ...]
    chains: tuple[ConsideredChain, ...]
    program: Program
    partition: Partition
    target: Target
    build: Build
    units: tuple[BoundUnit, ...]
    bodies: Mapping[Program, CompiledBody]
    constructions: ConstructionCounts
    segments: tuple[PlannedSegment, ...]
    body_segments: tuple[PlannedSegment, ...]
    manifest: Manifest
    weights: Mapping[str, Array]
    weight_sources: Mapping[str, Array]

    @property
    def kernels(self) -> tuple[CompiledKernel, ...]:
        """The distinct functions, in the order of first use."""
        return distinct_kernels(self.all_units)

    @property
    def all_units(self) -> tuple[BoundUnit, ...]:
        """The units of the model, then those of bodies."""
        return tuple(u for units in (self.units, *(b.units for b in self.bodies.values())) for u in units)

    @property
    def all_segments(self) -> tuple[PlannedSegment, ...]:
        """All native entries."""
        return (*self.segments, *self.body_segments)

    def llvm(self) -> str:
        """The LLVM IR text of all functions and entries, for reading, as one module."""
        segments = [s.segment for s in self.all_segments]
        return emit_llvm([k.func for k in self.kernels], segments, self.target, self._step_tree())

    def _step_tree(self) -> StepTree | None:
        return None if self.manifest.tree is None else make_step_tree(self.manifest)

    def assembly(self) -> str:
        """The machine code as assembly text."""
        return assembly(self.llvm(), self.target)

    @raised_gc_threshold()
    def artifact(self) -> Artifact:
        """The compiled model as data; generates the object code that there is not yet."""
        return Artifact(self.manifest, self._code() if self.all_segments else b"", self.weights)

    def _code(self) -> bytes:
        """The archive of object files: the entries', then those of kernels in the order of first use."""
        segments = [s.segment for s in self.all_segments]
        if any(s.timestamps is not None for s in segments):
            # its kernels take one more argument, and it is run only once
            return compile_object(self.llvm(), self.target)
        symbols = {k.name: KernelSymbol.of(k.func, kernel_symbol(k.task)) for k in self.kernels}
        entries = compile_object(emit_entry_module(symbols, segments, self.target, self._step_tree()), self.target)
        return make_archive([entries, *(k.code or kernel_code(k.func, k.task) for k in self.kernels)])
