"""The program IR: a model as tensor expressions, ready to be partitioned, scheduled and planned."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.expr.computation import Computation, Stage
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.expr.traversal import free_vars
from tilewright.graph.ir import Array, Node


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on the symbols that must hold at run time, such as `a == b` for two dimensions that are added."""

    condition: Expr
    message: str


@dataclass(frozen=True, slots=True, eq=False)
class Fallback:
    """A step that runs nodes on ONNX's reference evaluator, between native segments.

    Attributes:
        nodes: the nodes.
        inputs: buffers that the evaluator's model takes as inputs; constants are part of the model.
        outputs: buffers that the step writes.
        runtime_shapes: shapes of `outputs` as the evaluator reports them, of literals and symbols. Where a buffer has
            another size, a constraint of the program equates the two.
        data_symbols: the symbols in `runtime_shapes` that are defined here: data-dependent sizes, known once the step
            has run.
        reason: why the nodes have no native code.
        model: the serialized ONNX model; its inputs and outputs are named like the buffers, in the same order.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    runtime_shapes: tuple[tuple[Expr, ...], ...]
    data_symbols: tuple[Var, ...]
    reason: str
    model: bytes

    @property
    def label(self) -> str:
        """The user's names of the nodes."""
        return ", ".join(n.label for n in self.nodes)


Step = Stage | Fallback


def step_outputs(step: Step) -> tuple[Buffer, ...]:
    """The buffers that a step writes."""
    return step.outputs if isinstance(step, Fallback) else (step.output,)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A model as steps in order of execution.

    Attributes:
        name: the model's name.
        inputs: buffers that the caller feeds, in the model's order; their names are identifiers.
        outputs: (output name, buffer) in the model's order; a buffer may be an input or a constant, and may occur
            twice.
        constants: data of constant buffers, by buffer name.
        steps: computations, views and fallbacks; every buffer is written once, before it is read.
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


def eliminate_dead_steps(steps: Sequence[Step], live: set[str]) -> list[Step]:
    """The steps whose results, or whose results' sizes, the live buffers depend on, in order."""
    live = set(live)
    sizes: set[Var] = set()
    kept: list[Step] = []
    for step in reversed(steps):
        defines_size = isinstance(step, Fallback) and not sizes.isdisjoint(step.data_symbols)
        if defines_size or any(b.name in live for b in step_outputs(step)):
            kept.append(step)
            live |= {b.name for b in step.inputs}
            sizes |= {v for b in (*step_outputs(step), *step.inputs) for n in b.shape for v in free_vars(n)}
            sizes |= free_vars(step.body) if isinstance(step, Computation) else set()
    return kept[::-1]
