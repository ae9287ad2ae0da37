"""Sub-graphs of control flow: the programs that they are lowered to, and what is known around them.

A sub-graph is lowered like a graph whose inputs are its parameters and the values that it captures, over the symbols of
the programs around it and its own.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from tilewright.errors import Defect, ModelError
from tilewright.expr.computation import View
from tilewright.expr.dtype import opaque
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.expr.traversal import free_vars
from tilewright.graph.fallback import FallbackContext
from tilewright.graph.ir import Array, Graph, Node, Subgraph, TensorType, Value
from tilewright.graph.program import Body, Program
from tilewright.ops.definition import KnownElements


@dataclass(frozen=True, slots=True)
class Enclosing:
    """What the lowering of a sub-graph knows of the programs around it.

    Attributes:
        symbols: names of their symbols.
        data_symbols: names of those whose size may be 1 where a node broadcasts.
        known: elements of captured values by the name that the sub-graph has for them.
        depth: levels of control flow around.
        assumed: values of the conditions of the conditionals around.
    """

    symbols: Set[str] = frozenset()
    data_symbols: Set[str] = frozenset()
    known: Mapping[str, KnownElements] = field(default_factory=dict[str, KnownElements])
    depth: int = 0
    assumed: Mapping[Expr, bool] = field(default_factory=dict[Expr, bool])

    def deeper(self, symbols: Set[str], data_symbols: Set[str]) -> "Enclosing":
        """One level further inside, with these names of symbols."""
        return replace(self, symbols=symbols, data_symbols=data_symbols, known={}, depth=self.depth + 1)


LowerBody = Callable[[Graph, Enclosing], Program]
"""Lowers the graph that stands for a sub-graph; raises ModelError."""


class NotNativeError(Exception):
    """A control-flow node that only the evaluator can run; the reason."""


class InvalidSubgraphError(NotNativeError):
    """A sub-graph that no sizes suit; `problem` tells why."""

    def __init__(self, problem: Defect) -> None:
        super().__init__(f"a sub-graph has no native code ({problem})")
        self.problem = problem


@dataclass(frozen=True, slots=True)
class ControlFlowContext:
    """The surroundings of a control-flow node.

    Attributes:
        values: operands, constants and symbols, as for a fallback.
        enclosing: of the sub-graphs.
        lower_body: lowers them.
        make_name: generates a buffer's name from a value's name.
        used: names of the values that are read or returned.
    """

    values: FallbackContext
    enclosing: Enclosing
    lower_body: LowerBody
    make_name: Callable[[str], str]
    used: Set[str]


def lower_subgraph(
    node: Node,
    subgraph: Subgraph,
    parameters: Mapping[str, TensorType],
    context: ControlFlowContext,
    symbols: tuple[Var, ...] = (),
) -> Body:
    """The program of a sub-graph with the buffers that it captures.

    Args:
        node: its node.
        subgraph: the sub-graph.
        parameters: types of its parameters by name, in order.
        context: of the node.
        symbols: its own symbols in them.
    """
    outer = context.values
    defined = {*subgraph.inputs, *subgraph.constants, *(o for n in subgraph.nodes for o in n.outputs)}
    read = {v for n in subgraph.nodes for v in n.inputs} | set(subgraph.outputs)
    captured = {v: name for v, name in node.captured.items() if v in read and v not in defined}
    constants: dict[str, Array] = {v: outer.constants[n] for v, n in captured.items() if n in outer.constants}
    feeds = {v: outer.feeds[n] for v, n in captured.items() if n in outer.feeds}
    known = {v: e for v in feeds if (e := outer.operands[captured[v]].known_elements) is not None}
    values = [Value(v, t) for v, t in parameters.items()]
    values += [Value(v, TensorType(b.dtype, b.shape)) for v, b in feeds.items()]
    declared = {v: t for v, t in subgraph.declared_types.items() if v not in subgraph.inputs}
    graph = Graph(
        name=node.name, inputs=tuple(values), outputs=subgraph.outputs, constants=constants | dict(subgraph.constants),
        nodes=subgraph.nodes, symbols=symbols, declared_types=declared, opsets=outer.graph.opsets,
        symbol_names=outer.graph.symbol_names, dialect=outer.graph.dialect,
        opaque_types={v: outer.opaque_types[b.name] for v, b in feeds.items() if b.name in outer.opaque_types},
    )  # fmt: skip
    try:
        program = context.lower_body(graph, replace(context.enclosing, known=known))
    except ModelError as error:
        raise InvalidSubgraphError(error.problems[0]) from error
    if any(b.dtype is opaque for _, b in program.outputs):
        raise NotNativeError("a sub-graph returns values that are no tensors")
    own = frozenset(v.name for v in own_symbols(program, symbols))
    return _without_unread_captures(program, len(parameters), list(feeds.values()), own)


def _without_unread_captures(
    program: Program, parameters: int, captures: Sequence[Buffer], own_symbols: frozenset[str]
) -> Body:
    read = {b.name for s in program.steps for b in s.inputs} | {b.name for _, b in program.outputs}
    kept = [k for k, b in enumerate(program.inputs) if k < parameters or b.name in read]
    inputs, names = (tuple(x[k] for k in kept) for x in (program.inputs, program.input_names))
    body = replace(program, inputs=inputs, input_names=names)
    return Body(body, tuple(captures[k - parameters] for k in kept if k >= parameters), own_symbols)


def own_symbols(program: Program, parameters: Iterable[Var]) -> Set[Var]:
    """The symbols that have no meaning outside of a program: those of its parameters, and data-dependent sizes."""
    data = (v for s in program.steps if not isinstance(s, View) for v in getattr(s, "data_symbols", ()))
    names = {v.name for v in parameters}
    sizes = (v for b in program.inputs for n in b.shape for v in free_vars(n) if v.name in names)
    return frozenset((*parameters, *sizes, *data))


def read_buffers(operands: Sequence[Buffer], bodies: Sequence[Body]) -> tuple[Buffer, ...]:
    """What a step reads: its operands, and what its bodies capture."""
    return tuple(dict.fromkeys((*operands, *(b for body in bodies for b in body.captures))))
