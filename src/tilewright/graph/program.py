"""The program IR: a model as tensor expressions, ready to be partitioned, scheduled and planned."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.expr.computation import Computation, Stage
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.expr.traversal import free_vars
from tilewright.graph.ir import Array, Node
from tilewright.routine.routine import Routine


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on the symbols that must hold at run time, such as `a == b` for two dimensions that are added."""

    condition: Expr
    message: str


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RuntimeStep:
    """A step that the runtime executes, between native segments: a fallback or control flow.

    Attributes:
        nodes: the nodes.
        inputs: buffers that the step reads.
        outputs: buffers that the step writes.
        runtime_shapes: shapes of `outputs` as the results have them, of literals and symbols. Where a buffer has
            another size, a constraint of the program equates the two.
        data_symbols: the symbols in `runtime_shapes` that are defined here: data-dependent sizes, known once the step
            has run.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    runtime_shapes: tuple[tuple[Expr, ...], ...]
    data_symbols: tuple[Var, ...]

    @property
    def label(self) -> str:
        """The user's names of the nodes."""
        return ", ".join(n.label for n in self.nodes)

    @property
    def origin(self) -> str:
        """The labels of the model's nodes, of which these may be parts."""
        return ", ".join(dict.fromkeys(n.origin for n in self.nodes))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Fallback(RuntimeStep):
    """A step that runs nodes on ONNX's reference evaluator; constants that the nodes read are part of its model.

    Attributes:
        reason: why the nodes have no native code.
        model: the serialized ONNX model; its inputs and outputs are named like the buffers, in the same order.
    """

    reason: str
    model: bytes


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RoutineStep(RuntimeStep):
    """The call of a routine, which native code makes; it defines no sizes.

    Attributes:
        routine: the routine; its buffers are the arguments, the outputs, and then the scratch buffers.
        arguments: the buffers that it reads; `inputs` are these, each once.
        scratch: buffers that hold data during the call only.
        scalars: int64 expressions over the symbols.
    """

    routine: Routine
    arguments: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]
    scalars: tuple[Expr, ...]

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers of the routine, in order."""
        return (*self.arguments, *self.outputs, *self.scratch)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SizesStep(RuntimeStep):
    """Data-dependent sizes: the runtime binds symbols to elements of an int64 tensor, the only input.

    Attributes:
        positions: of the element of each of `data_symbols`.
    """

    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """A branch of a conditional or the body of a loop.

    Attributes:
        program: over its own buffers, and over the symbols of the enclosing program and its own. Its last inputs are
            captured.
        captures: the buffers of the enclosing program that these inputs are.
        own_symbols: names of its own symbols: sizes of its parameters, and those that its steps bring.
    """

    program: "Program"
    captures: tuple[Buffer, ...]
    own_symbols: frozenset[str] = frozenset()

    @property
    def outer_symbols(self) -> frozenset[Var]:
        """The symbols of the enclosing program that it depends on."""
        return frozenset(v for v in self.program.used_symbols if v.name not in self.own_symbols)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ControlFlow(RuntimeStep):
    """A conditional or a loop; constant buffers are among the inputs, as the runtime reads them."""

    @property
    def bodies(self) -> tuple[Body, ...]:
        """The branches or the body."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Conditional(ControlFlow):
    """One of two branches, whose outputs are the step's outputs.

    Attributes:
        condition: a bool.
        then_branch: without inputs other than captured ones.
        else_branch: as `then_branch`.
    """

    condition: Buffer
    then_branch: Body
    else_branch: Body

    @property
    def bodies(self) -> tuple[Body, ...]:
        """The branches."""
        return self.then_branch, self.else_branch


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Loop(ControlFlow):
    """Repetition of a body.

    The body's first inputs are the number of the iteration (int64), the condition (bool), and the carried values; its
    outputs the condition, unless the loop is counted, the next carried values, and the scan outputs, which are stacked
    along a new first dimension.

    Attributes:
        trip_count: the number of iterations (int64); None without a limit.
        condition: whether there is a first iteration (bool); None: there is.
        initial: the first carried values.
        body: the body.
        is_counted: whether the condition always holds, so that the body does not compute it.
        count: the number of iterations over the symbols, where it is known; None where it depends on data.
    """

    trip_count: Buffer | None
    condition: Buffer | None
    initial: tuple[Buffer, ...]
    body: Body
    is_counted: bool
    count: Expr | None

    @property
    def bodies(self) -> tuple[Body, ...]:
        """The body."""
        return (self.body,)


Step = Stage | RuntimeStep


def _call_sizes(step: Step) -> tuple[Expr, ...]:
    """The expressions over symbols that the call of a routine needs besides its inputs and outputs."""
    return (*step.scalars, *(n for b in step.scratch for n in b.shape)) if isinstance(step, RoutineStep) else ()


def step_outputs(step: Step) -> tuple[Buffer, ...]:
    """The buffers that a step writes."""
    return step.outputs if isinstance(step, RuntimeStep) else (step.output,)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A model as steps in order of execution.

    Attributes:
        name: the model's name.
        inputs: buffers that the caller feeds, in the model's order; their names are identifiers.
        outputs: (output name, buffer) in the model's order; a buffer may be an input or a constant, and may occur
            twice.
        constants: data of constant buffers, by buffer name.
        steps: computations, views, fallbacks and control flow; every buffer is written once, before it is read.
        symbols: symbolic dimensions with ranges.
        constraints: checked at the start of every call.
        metadata: producer, version and custom properties ("custom:<key>"), all strings.
        input_names: the model's names of `inputs`.
        symbol_names: the user's name of each symbol, by identifier.
        values: the buffer of every value of the model that still exists, by the model's name.
    """

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[tuple[str, Buffer], ...]
    constants: Mapping[str, Array]
    steps: tuple[Step, ...]
    symbols: tuple[Var, ...]
    constraints: tuple[Constraint, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    input_names: tuple[str, ...] = ()
    symbol_names: Mapping[str, str] = field(default_factory=dict[str, str])
    values: Mapping[str, Buffer] = field(default_factory=dict[str, Buffer])

    @property
    def buffer_names(self) -> frozenset[str]:
        """The names of all buffers."""
        used = (b.name for s in self.steps for b in (*s.inputs, *step_outputs(s)))
        return frozenset((*used, *self.constants, *(b.name for b in self.inputs)))

    @property
    def used_symbols(self) -> frozenset[Var]:
        """The symbols that its steps, its outputs and its constraints depend on, those of the enclosing program and
        those that its bodies take from it among them."""
        buffers = [b for s in self.steps for b in (*step_outputs(s), *s.inputs)]
        sizes = [n for b in (*buffers, *self.inputs, *(b for _, b in self.outputs)) for n in b.shape]
        sizes += [c.condition for c in self.constraints]
        inner = (v for s in self.steps for body in bodies_of(s) for v in body.outer_symbols)
        computed = (v for s in self.steps if isinstance(s, Computation) for v in _free_symbols(s))
        sizes += [n for s in self.steps for n in _call_sizes(s)]
        return frozenset((*inner, *computed, *(v for n in dict.fromkeys(sizes) for v in free_vars(n))))


def _free_symbols(c: Computation) -> frozenset[Var]:
    """The symbols that a computation depends on."""
    axes = (*c.axes, *c.reduce_axes)
    used = {v for e in (c.body, *(a.extent for a in axes)) for v in free_vars(e)}
    return frozenset(used - {a.var for a in axes})


def bodies_of(step: Step) -> tuple[Body, ...]:
    """The bodies of control flow; none of other steps."""
    return step.bodies if isinstance(step, ControlFlow) else ()


def nested_programs(program: Program) -> Iterator[Program]:
    """The programs of all bodies inside a program, each before those inside it."""
    for step in program.steps:
        for body in bodies_of(step):
            yield body.program
            yield from nested_programs(body.program)


def eliminate_dead_steps(steps: Sequence[Step], live: set[str]) -> list[Step]:
    """The steps whose results, or whose results' sizes, the live buffers depend on, in order."""
    live = set(live)
    sizes: set[Var] = set()
    kept: list[Step] = []
    for step in reversed(steps):
        defines_size = isinstance(step, RuntimeStep) and not sizes.isdisjoint(step.data_symbols)
        if defines_size or any(b.name in live for b in step_outputs(step)):
            kept.append(step)
            live |= {b.name for b in step.inputs}
            sizes |= {v for b in (*step_outputs(step), *step.inputs) for n in b.shape for v in free_vars(n)}
            sizes |= free_vars(step.body) if isinstance(step, Computation) else set()
            sizes |= {v for n in _call_sizes(step) for v in free_vars(n)}
            sizes |= {v for body in bodies_of(step) for v in body.outer_symbols}
    return kept[::-1]
