"""Control flow that native code runs itself: conditionals and counted loops whose bodies need nothing from the runtime.

Their sizes are expressions over the symbols of the program around them, so that memory is planned before a call. Loops
whose number of iterations depends on data stay with the runtime, which can be interrupted between iterations.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from tilewright.driver.artifact.bodies import CompiledBody
from tilewright.driver.kernel_build.kernels import BoundKernel, BoundUnit
from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds, interval
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.computation import View
from tilewright.expr.nodes import Buffer, Expr, Var, const
from tilewright.expr.traversal import is_one
from tilewright.graph.program import Body, Conditional, ControlFlow, Loop, Program, RoutineStep, RuntimeStep

MAX_ITERATIONS = 1 << 24
"""Most iterations of a native loop, which nothing interrupts."""


@dataclass(frozen=True, slots=True, eq=False)
class NativeBody:
    """A branch or a loop's body as units of native code.

    Attributes:
        program: over the symbols of the program around it.
        units: in order of execution.
    """

    program: Program
    units: "tuple[NativeUnit, ...]"

    @property
    def results(self) -> list[Buffer]:
        """Its outputs."""
        return [b for _, b in self.program.outputs]


@dataclass(frozen=True, slots=True, eq=False)
class NativeConditional:
    """A conditional that native code runs, with its branches."""

    step: Conditional
    bodies: tuple[NativeBody, NativeBody]


@dataclass(frozen=True, slots=True, eq=False)
class NativeLoop:
    """A loop of `count` iterations that native code runs, with its body."""

    step: Loop
    count: Expr
    bodies: tuple[NativeBody]


@dataclass(frozen=True, slots=True, eq=False)
class NativeRoutine:
    """The call of a routine that native code makes."""

    step: RoutineStep


NativeControlFlow = NativeConditional | NativeLoop
NativeUnit = BoundKernel | View | NativeControlFlow | NativeRoutine


def with_native_control_flow(
    program: Program, units: Sequence[BoundUnit], bodies: Mapping[Program, CompiledBody], visible: Set[Var]
) -> tuple[BoundUnit | NativeUnit, ...]:
    """The units of a program, with routines, and native control flow where that is possible.

    Args:
        program: the program.
        units: its units.
        bodies: compiled bodies by the program that control flow holds.
        visible: symbols that have sizes when the program begins, its own among them.
    """
    checked = frozenset(c.condition for c in program.constraints)
    known = visible - {v for s in program.steps if isinstance(s, RuntimeStep) for v in s.data_symbols}

    def native(unit: BoundUnit) -> BoundUnit | NativeUnit:
        match unit:
            case RoutineStep():
                return NativeRoutine(unit)
            case ControlFlow():
                return _native_control_flow(unit, bodies, known, checked) or unit
            case _:
                return unit

    return tuple(map(native, units))


def _native_control_flow(
    step: ControlFlow, bodies: Mapping[Program, CompiledBody], visible: Set[Var], checked: Set[Expr]
) -> NativeControlFlow | None:
    """The native form of control flow; None where the runtime executes it."""
    if step.data_symbols or any(not b.dtype.is_native for b in (*step.inputs, *step.outputs)):
        return None
    if isinstance(step, Conditional) and not is_one(step.condition.size):
        return None
    count = step.count if isinstance(step, Loop) else None
    # a body runs only where there is an iteration
    holds = NO_BOUNDS if count is None else NO_BOUNDS.assuming(const(1) <= count)
    inner = [_native_body(body, bodies, visible, checked, holds) for body in step.bodies]
    native = [b for b in inner if b is not None]
    if len(native) < len(inner):
        return None
    if isinstance(step, Conditional):
        return NativeConditional(step, (native[0], native[1]))
    if isinstance(step, Loop) and step.count is not None and _is_limited(step.count):
        return NativeLoop(step, step.count, (native[0],))
    return None


def _is_limited(count: Expr) -> bool:
    most = interval(count)[1]
    return most is not None and most <= MAX_ITERATIONS


def _native_body(
    body: Body, bodies: Mapping[Program, CompiledBody], visible: Set[Var], checked: Set[Expr], holds: Bounds
) -> NativeBody | None:
    """The native form of a body; None where it needs the runtime.

    Args:
        body: the body.
        bodies: compiled bodies.
        visible: symbols that have sizes.
        checked: conditions that are checked before.
        holds: what holds where the body runs.
    """
    compiled = bodies[body.program]
    program = compiled.partition.program
    # conditions of a body hold only where it runs, but native code checks all of them before a call
    if not program.used_symbols <= visible or not all(
        c.condition in checked or can_prove(c.condition, holds) for c in program.constraints
    ):
        return None
    units: list[NativeUnit] = []
    for unit in compiled.units:
        if isinstance(unit, ControlFlow):
            inner = _native_control_flow(unit, bodies, visible, checked)
            if inner is None:
                return None
            units.append(inner)
        elif isinstance(unit, RoutineStep):
            units.append(NativeRoutine(unit))
        elif isinstance(unit, RuntimeStep) or (isinstance(unit, BoundKernel) and unit.kernel.slices is not None):
            return None
        else:
            units.append(unit)
    return NativeBody(program, tuple(units))


def nested_routines(units: Sequence[NativeUnit]) -> Iterator[RoutineStep]:
    """The routines among units, those of bodies among them."""
    for unit in units:
        if isinstance(unit, NativeRoutine):
            yield unit.step
        elif isinstance(unit, NativeControlFlow):
            for body in unit.bodies:
                yield from nested_routines(body.units)


def nested_units(units: Sequence[NativeUnit]) -> Iterator[BoundKernel | View]:
    """The kernels and views of units, those of bodies among them."""
    for unit in units:
        if isinstance(unit, NativeControlFlow):
            for body in unit.bodies:
                yield from nested_units(body.units)
        elif not isinstance(unit, NativeRoutine):
            yield unit
