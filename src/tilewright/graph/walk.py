"""One walk over the nodes of a graph, from constants and inputs to operands of the outputs."""

from collections.abc import Iterable

from tilewright.errors import InternalError, Problem, TilewrightError, UnsupportedError
from tilewright.expr.buffer import Buffer
from tilewright.expr.dtype import dtype_of
from tilewright.expr.nodes import Const, const
from tilewright.graph.fallback import Outside, Unit, make_fallback, output_buffers, units
from tilewright.graph.ir import Array, Graph, Node, TensorType
from tilewright.graph.known import folded, known_array, with_known
from tilewright.graph.limits import beyond_limits
from tilewright.graph.names import Namer
from tilewright.graph.program import Constraint, Step
from tilewright.ops.definition import Definition, Known, Operand, literal
from tilewright.ops.library import OPERATORS


class Walk:
    """The state of the walk; `run` fills it.

    Attributes:
        operands: values that are tensors, by name.
        steps: in order; some may turn out not to be needed.
        constants: data by buffer name.
        constraints: conditions on symbols.
        problems: what is wrong.
        links: positions of nodes that must run in one fallback step, because what passes between them is no tensor.
    """

    def __init__(self, graph: Graph, groups: tuple[frozenset[int], ...]) -> None:
        self.graph = graph
        self.operands: dict[str, Operand] = {}
        self.steps: list[Step] = []
        self.constants: dict[str, Array] = {}
        self.constraints: list[Constraint] = []
        self.problems: list[Problem] = []
        self.links: list[frozenset[int]] = []
        self._units = units(graph, groups)
        self._index = {n.name: i for i, n in enumerate(graph.nodes)}
        self._uses: dict[str, set[str]] = {}
        for node in graph.nodes:
            for value in node.inputs:
                self._uses.setdefault(value, set()).add(node.name)
        self._namer = Namer(frozenset(s.name for s in graph.symbols))
        self._known: dict[Buffer, Known] = {}
        # Values that are no tensors, with the positions of the nodes that make them; values that a failed node lacks.
        self._opaque: dict[str, frozenset[int]] = {}
        self._failed: set[str] = set()

    def run(self) -> "Walk":
        """Walks; returns itself."""
        for value in self.graph.inputs:
            buffer = Buffer(self._namer.name(value.name), value.type.shape, value.type.dtype)
            self.operands[value.name] = Operand(buffer)
        for unit in self._units:
            self._lower(unit)
        for name in self.graph.outputs:
            if name in self._opaque:
                self.problems.append(Problem("output", f"output '{name}'", "is no tensor, or nobody knows its rank"))
            elif name not in self._failed and self._operand(name) is None:
                raise InternalError(f"output '{name}' has no producer")
        return self

    def _operand(self, name: str) -> Operand | None:
        """The operand of a value; a constant becomes one when it is first used."""
        if name not in self.operands and name in self.graph.constants:
            self.operands[name] = self._constant(self._namer.name(name), self.graph.constants[name])
        return self.operands.get(name)

    def _constant(self, buffer_name: str, array: Array) -> Operand:
        shape = tuple(const(n) for n in array.shape)
        operand = Operand(Buffer(buffer_name, shape, dtype_of(array.dtype)), literal(array))
        self.constants[buffer_name] = array
        if operand.known is not None:
            self._known[operand.buffer] = operand.known
        return operand

    def _lower(self, unit: Unit) -> None:
        outputs = [o for n in unit for o in n.outputs if o]
        inner = set(outputs)
        needed = [v for n in unit for v in n.inputs if v and v not in inner]
        if any(v in self._failed for v in needed):
            self._give_up(outputs)
            return
        if len(unit) > 1 or any(v in self._opaque for v in needed):
            self._fall_back(unit, "works on values that are no tensors")
        else:
            for node in unit:
                self._define(node)

    def _define(self, node: Node) -> None:
        """Lowers a node through its definition, else as a fallback."""
        define = OPERATORS.get((node.domain, node.op_type))
        if define is None:
            self._fall_back((node,), "no native definition")
            return
        definition = Definition(
            op_type=node.op_type,
            label=node.label,
            opset=node.opset,
            operands=tuple(self._operand(v) if v else None for v in node.arguments),
            attributes=node.attributes,
            prefix=self._namer.name(next((o for o in node.outputs if o), node.name), numbered=True),
            wanted=len(node.outputs),
        )
        try:
            result = define(definition)
        except UnsupportedError as error:
            self._fall_back((node,), error.what)
            return
        except InternalError:
            raise
        except RecursionError:
            what = "sizes or values are expressions nested too deep to be worked on"
            self._fail(node.outputs, Problem("limit", f"node {node.label}", what))
            return
        except TilewrightError as error:
            where = error.where or f"node {node.label}"
            self._fail(node.outputs, Problem(error.code, where, error.what, error.hint))
            return
        except Exception as error:
            raise InternalError(f"{type(error).__name__}: {error}", where=f"node {node.label}") from error
        self._take(definition)
        results = result if isinstance(result, tuple) else (result,)
        if len(results) < len([o for o in node.outputs if o]):
            raise InternalError(f"{len(results)} results for {len(node.outputs)} outputs", where=f"node {node.label}")
        for name, operand in zip(node.outputs, results, strict=False):
            if name:
                self._finish(node, name, operand)

    def _take(self, definition: Definition) -> None:
        """Adds what a definition emitted: literals replace loads, and stages of constants become constants."""
        self._known.update(definition.derived)
        for stage in definition.stages:
            array = known_array(stage.output, self._known.get(stage.output))
            simpler = with_known(stage, self._known)
            if array is None:
                array = folded(simpler, self.constants)
            if array is None:
                self.steps.append(simpler)
                continue
            self.constants[stage.output.name] = array
            elements = literal(array)
            if elements is not None:
                self._known[stage.output] = elements
        for condition, message in definition.constraints:
            self.constraints.append(Constraint(condition, message))

    def _finish(self, node: Node, name: str, operand: Operand) -> None:
        known = operand.known if operand.known is not None else self._known.get(operand.buffer)
        operand = Operand(operand.buffer, known)
        what = beyond_limits(operand)
        if what is not None:
            self._fail((name,), Problem("shape", f"node {node.label}", f"computes '{name}' {what}"))
            return
        self.operands[name] = operand
        problem = self._contradiction(node, name, operand)
        if problem is not None:
            self.problems.append(problem)

    def _contradiction(self, node: Node, name: str, operand: Operand) -> Problem | None:
        """The problem that the model declares another type, rank or (for its outputs) size than it computes.

        Sizes that a file states for values inside are often left over from other input sizes.
        """
        declared = self.graph.declared.get(name)
        if declared is None:
            return None
        same = operand.dtype == declared.dtype and operand.rank == len(declared.shape)
        if same and name in self.graph.outputs:
            pairs = zip(operand.shape, declared.shape, strict=True)
            same = all(a is b or not (isinstance(a, Const) and isinstance(b, Const)) for a, b in pairs)
        if same:
            return None
        found = TensorType(operand.dtype, operand.shape)
        return Problem(
            "shape", f"node {node.label}", f"computes '{name}' as {found}, but the model declares {declared}"
        )

    def _fail(self, outputs: Iterable[str], problem: Problem) -> None:
        """Notes a problem and goes on with the declared types where they are literal."""
        self.problems.append(problem)
        self._give_up(outputs)

    def _give_up(self, outputs: Iterable[str]) -> None:
        for name in outputs:
            declared = self.graph.declared.get(name) if name else None
            if declared is not None and all(isinstance(s, Const) for s in declared.shape):
                self.operands[name] = Operand(Buffer(self._namer.name(name), declared.shape, declared.dtype))
            elif name:
                self._failed.add(name)

    def _fall_back(self, unit: Unit, reason: str) -> None:
        inner = {o for n in unit for o in n.outputs if o}
        chain = frozenset(i for n in unit for v in n.inputs if v in self._opaque for i in self._opaque[v])
        nodes = (*(self.graph.nodes[i] for i in sorted(chain)), *unit)
        inner |= {o for n in nodes for o in n.outputs if o}
        outside = self._outside(nodes, inner)
        members = {n.name for n in unit}
        wanted = [o for n in unit for o in n.outputs if o and self._leaves(o, members)]
        buffers, fresh = output_buffers(nodes, outside, wanted, self._namer.name)
        positions = frozenset(self._index[n.name] for n in unit)
        if chain:
            # This walk only finds out which nodes belong together; the next one has them as one unit.
            self.links.append(chain | positions)
        for name, buffer in buffers.items():
            what = None if buffer is None else beyond_limits(Operand(buffer))
            if buffer is None:
                self._opaque[name] = chain | positions
            elif what is not None:
                self._fail((name,), Problem("shape", f"node {unit[-1].label}", f"computes '{name}' {what}"))
            else:
                self.operands[name] = Operand(buffer)
        tensors = {name: b for name, b in buffers.items() if b is not None and name in self.operands}
        if chain or len(tensors) < len(wanted):
            return
        step = make_fallback(unit, outside, tensors, fresh, reason)
        if isinstance(step, Problem):
            self.problems.append(step)
        else:
            self.steps.append(step)

    def _leaves(self, value: str, members: set[str]) -> bool:
        """Whether a value is used outside of the unit."""
        return value in self.graph.outputs or bool(self._uses.get(value, set()) - members)

    def _outside(self, nodes: Unit, inner: set[str]) -> Outside:
        feeds: dict[str, Buffer] = {}
        constants: dict[str, Array] = {}
        for value in dict.fromkeys(v for n in nodes for v in n.inputs if v and v not in inner):
            operand = self._operand(value)
            if operand is None:
                continue
            if operand.buffer.name in self.constants:
                constants[value] = self.constants[operand.buffer.name]
            else:
                feeds[value] = operand.buffer
        return Outside(feeds, constants, self.graph)


def constant_results(graph: Graph) -> dict[str, Array]:
    """Values that turn out to be constant when the graph is walked, by name; nodes that fail are passed over."""
    walk = Walk(graph, ()).run()
    return {n: walk.constants[o.buffer.name] for n, o in walk.operands.items() if o.buffer.name in walk.constants}
