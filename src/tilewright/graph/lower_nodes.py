"""Lowering of a graph's nodes to steps, in one walk from inputs and constants to outputs."""

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import replace

from tilewright.errors import Defect, InternalError, TilewrightError, UnsupportedError
from tilewright.expr.dtype import dtype_of, opaque
from tilewright.expr.nodes import Buffer, Const, Expr, Var, const
from tilewright.graph.constant_values import as_constant_array, fold_stage, literal_elements, substitute_constants
from tilewright.graph.control_flow.conditional import ForcedCondition, RankConflictError, known_condition
from tilewright.graph.control_flow.decompose_node import decompose_node
from tilewright.graph.control_flow.duplicate_tail import has_copied_tail
from tilewright.graph.control_flow.inline_branches import inline_branch, is_conditional
from tilewright.graph.control_flow.lower_control_flow import MAX_NATIVE_DEPTH, lower_control_flow
from tilewright.graph.control_flow.strip_mine_loop import strip_mined_loop, suits_strip_mining
from tilewright.graph.control_flow.subgraphs import ControlFlowContext, Enclosing, LowerBody, NotNativeError
from tilewright.graph.declared_types import declared_mismatch
from tilewright.graph.equal_sizes import replace_sizes, required_equal_sizes, size_substitution
from tilewright.graph.fallback import FallbackContext, FallbackResults, infer_results, make_fallback
from tilewright.graph.finite_values import has_finite_elements
from tilewright.graph.ir import Array, Graph, Node
from tilewright.graph.limits import limit_violation
from tilewright.graph.names import Namer
from tilewright.graph.program import Constraint, RuntimeStep, Step
from tilewright.graph.routines import SizeSymbols, make_step
from tilewright.graph.solve_symbols import SolvedSize
from tilewright.ops.definition import Definition, KnownElements, OpValue
from tilewright.ops.library import OPERATORS
from tilewright.routine.stages import RoutineStage, SizesStage

_NO_ENCLOSING = Enclosing()


class NodeLowering:
    """The state of the walk over a graph's nodes; `run` performs it.

    Attributes:
        operands: operands of the values that are tensors, by value name.
        steps: in order of execution, dead ones included.
        constants: data by buffer name.
        constraints: conditions on symbols.
        problems: defects of the model.
        data_symbols: symbols of sizes that only the reference evaluator computes, in the order of their definition.
        unproven_equalities: required equalities of sizes of one node's operands, whose simpler side is not provably the
            smaller one.
        shape_mismatches: values whose declared shape is not the computed one, as texts.
        known_conditions: values of conditions that follow from constants and ranges of symbols, by conditional.
        forced_conditions: of the conditionals with a branch that no sizes suit.
        rank_conflicts: conditionals whose branches compute values of different rank, which the evaluator runs.
        refused_tails: conditionals with copied tails (`duplicate_tail.py`) that have no native step, with the reasons.
    """

    def __init__(
        self,
        graph: Graph,
        solved: Mapping[str, SolvedSize] | None = None,
        assumed_equal: frozenset[Expr] = frozenset(),
        enclosing: Enclosing = _NO_ENCLOSING,
        lower_body: LowerBody | None = None,
    ) -> None:
        """Prepares a walk.

        Args:
            graph: the graph to lower.
            solved: what constraints of earlier walks say about data-dependent sizes, by symbol name.
            assumed_equal: those of earlier walks' `unproven_equalities` that nodes may rely on.
            enclosing: the programs around the graph of a sub-graph.
            lower_body: lowers sub-graphs of control-flow nodes; without it the evaluator runs these.
        """
        self.graph = graph
        self.data_symbols: list[Var] = []
        self.unproven_equalities: list[Expr] = []
        self.shape_mismatches: list[str] = []
        self.known_conditions: dict[str, bool] = {}
        self.forced_conditions: list[Constraint] = []
        self.rank_conflicts: list[str] = []
        self.refused_tails: list[tuple[str, str]] = []
        self._solved = solved or {}
        self._enclosing, self._lower_body = enclosing, lower_body
        self._assumed_equal = assumed_equal
        self.operands: dict[str, OpValue] = {}
        self.steps: list[Step] = []
        self.constants: dict[str, Array] = {}
        self.constraints: list[Constraint] = []
        self.problems: list[Defect] = []
        self._used_values = {v for n in graph.nodes for v in n.inputs} | set(graph.outputs)
        self._namer = Namer(frozenset(s.name for s in graph.symbols) | enclosing.symbols)
        self._constant_elements: dict[Buffer, KnownElements] = {}
        # Constant nodes of types without arrays, by value; serialized types of opaque buffers, by buffer; results of
        # failed nodes; symbols of data-dependent sizes, by origin; names of all such symbols.
        self._opaque_constants: dict[str, Node] = {}
        self._opaque_types: dict[str, bytes] = {}
        self._failed_values: set[str] = set()
        self._shared_sizes: dict[Hashable, tuple[Var, Expr]] = {}
        self._data_symbol_names: set[str] = set(enclosing.data_symbols)

    def run(self) -> "NodeLowering":
        """Performs the walk; returns the object itself."""
        for value in self.graph.inputs:
            buffer = Buffer(self._namer.make_name(value.name), value.type.shape, value.type.dtype)
            elements = self._enclosing.known.get(value.name)
            self.operands[value.name] = OpValue(buffer, elements)
            if elements is not None:
                self._constant_elements[buffer] = elements
            if value.name in self.graph.opaque_types:
                self._opaque_types[buffer.name] = self.graph.opaque_types[value.name]
        for node in self.graph.nodes:
            self._lower_node(node)
        for name in self.graph.outputs:
            if name not in self._failed_values and self._operand(name) is None:
                raise InternalError(f"output '{name}' has no producer")
        return self

    def _operand(self, name: str) -> OpValue | None:
        """The operand of a value, None where it has none; constants get theirs on first use."""
        if name not in self.operands and name in self.graph.constants:
            self.operands[name] = self._add_constant(self._namer.make_name(name), self.graph.constants[name])
        return self.operands.get(name)

    def _add_constant(self, buffer_name: str, array: Array) -> OpValue:
        shape = tuple(const(n) for n in array.shape)
        operand = OpValue(Buffer(buffer_name, shape, dtype_of(array.dtype)), literal_elements(array))
        self.constants[buffer_name] = array
        if operand.known_elements is not None:
            self._constant_elements[operand.buffer] = operand.known_elements
        return operand

    def _lower_node(self, node: Node) -> None:
        if any(v in self._failed_values for v in node.inputs):
            self._recover_values(node.outputs)
            return
        if node.op_type == "Constant" and not node.domain:
            # Arrays have no such type: fallbacks that read the constant embed its node in their model.
            self._opaque_constants[node.outputs[0]] = node
            if node.outputs[0] in self.graph.outputs:
                self._lower_to_fallback(node, "no native type")
            return
        if self._lower_body is not None and self._lower_decomposed(node, self._lower_body):
            return
        if node.subgraphs and self._lower_body is not None:
            self._lower_control_flow(node, self._lower_body)
            return
        operands = [self._operand(v) for v in node.inputs if v and v not in self._opaque_constants]
        types = {o.dtype for o in operands if o is not None and not o.dtype.is_native}
        if opaque in types:
            self._lower_to_fallback(node, "works on values that are no tensors")
        elif types or any(v in self._opaque_constants for v in node.inputs):
            self._lower_to_fallback(node, "works on elements without a native type")
        else:
            self._lower_by_definition(node)

    def _lower_control_flow(self, node: Node, lower_body: LowerBody, original: Node | None = None) -> bool:
        """Lowers control flow to a step with the programs of its sub-graphs, a conditional whose condition is known to
        the nodes of its branch, and what only the evaluator can run to a fallback; whether it needs none.

        Args:
            node: the node.
            lower_body: lowers sub-graphs.
            original: the node for which it stands, which the evaluator can run.
        """
        known = self._enclosing.assumed
        condition = known_condition(self._operand(node.inputs[0]), known) if is_conditional(node) else None
        if condition is not None:
            self._lower_branch(node, condition)
            return True
        symbols = {v.name for v in (*self.graph.symbols, *self.data_symbols)} | self._enclosing.symbols
        enclosing = self._enclosing.deeper(symbols, frozenset(self._data_symbol_names))
        outside = self._fallback_context(node)
        context = ControlFlowContext(outside, enclosing, lower_body, self._namer.make_name, self._used_values)
        try:
            lowered = lower_control_flow(node, context)
        except NotNativeError as error:
            if isinstance(error, RankConflictError) and is_conditional(node):
                self.rank_conflicts.append(node.name)
            if has_copied_tail(node):
                self.refused_tails.append((node.name, str(error)))
                self._recover_values(node.outputs)
            else:
                self._lower_to_fallback(original or node, str(error))
            return False
        if isinstance(lowered, Defect):
            self._fail_values((original or node).outputs, lowered)
            return False
        if isinstance(lowered, ForcedCondition):
            self.forced_conditions.append(lowered.constraint)
            self._lower_branch(node, lowered.holds)
            return True
        step, results = lowered
        # the loop over chunks is one level of control flow more
        if suits_strip_mining(step) and enclosing.depth < MAX_NATIVE_DEPTH:
            self._lower_replacement(*strip_mined_loop(node, self.graph.dialect.node_source))
            return True
        self._set_runtime_results(node, results)
        self._add_runtime_step(step, results)
        return True

    def _lower_branch(self, node: Node, condition: bool) -> None:
        """Lowers the branch of a conditional whose condition is known."""
        self.known_conditions[node.name] = condition
        taken, identity = self.graph.value_names | self.operands.keys(), self.graph.dialect.node_source("Identity")
        branch = inline_branch(node, condition, taken, identity)
        self._lower_replacement(branch.nodes, branch.constants)

    def _lower_decomposed(self, node: Node, lower_body: LowerBody) -> bool:
        """Lowers the nodes that replace a node; whether there are any."""
        decomposed = decompose_node(node, self._operand, self.graph.constants, self.graph.dialect.node_source)
        if isinstance(decomposed, Defect):
            self._fail_values(node.outputs, decomposed)
        elif decomposed is not None:
            self._lower_replacement(decomposed.nodes, decomposed.constants, decomposed.constraints)
            self._used_values |= {v for v, output in decomposed.renamed.items() if output in self._used_values}
            if decomposed.loop is None or self._lower_control_flow(decomposed.loop, lower_body, node):
                for nodes, constants in decomposed.after(self.operands.get):
                    self._lower_replacement(nodes, constants)
        return decomposed is not None

    def _lower_replacement(
        self, nodes: Sequence[Node], constants: Mapping[str, Array], constraints: Iterable[Constraint] = ()
    ) -> None:
        """Lowers the nodes that stand for one node."""
        self.constraints += constraints
        self.graph = self.graph.with_nodes(self.graph.nodes, {**self.graph.constants, **constants})
        self._used_values |= {v for n in nodes for v in n.inputs}
        for node in nodes:
            self._lower_node(node)

    def _lower_by_definition(self, node: Node) -> None:
        """Lowers a node through its operator's definition, or to a fallback where that is not possible."""
        define = OPERATORS.get((node.domain, node.op_type))
        if define is None:
            self._lower_to_fallback(node, "no native definition")
            return
        if node.has_opaque_attributes:
            self._lower_to_fallback(node, "an attribute is a graph, or of a type that only the evaluator knows")
            return
        prefix = self._namer.make_name(next((o for o in node.outputs if o), node.name), reserve_numbered=True)
        sizes = SizeSymbols(node, lambda: self._fallback_context(node), prefix)
        operands = tuple(self._operand(v) if v else None for v in node.arguments)
        definition = Definition(
            op_type=node.op_type, label=node.label, opset=node.opset, operands=operands, attributes=node.attributes,
            prefix=prefix, num_outputs=len(node.outputs), data_dependent_symbols=self._maybe_broadcast_symbols(node),
            has_finite_elements=self._has_finite_elements, make_size=sizes.make,
        )  # fmt: skip
        try:
            result = define(definition)
            required = required_equal_sizes(definition)
            self.unproven_equalities += [r.condition for r in required]
            equal_sizes = size_substitution(required, self._assumed_equal)
            if equal_sizes:
                definition = replace_sizes(definition, equal_sizes)
                result = define(definition)
        except UnsupportedError as error:
            self._lower_to_fallback(node, error.what)
            return
        except InternalError:
            raise
        except RecursionError:
            what = "sizes or values are expressions nested too deep to be worked on"
            self._fail_values(node.outputs, Defect("limit", f"node {node.label}", what))
            return
        except TilewrightError as error:
            where = error.where or f"node {node.label}"
            self._fail_values(node.outputs, Defect(error.code, where, error.what, error.hint))
            return
        except Exception as error:
            raise InternalError(f"{type(error).__name__}: {error}", where=f"node {node.label}") from error
        self._commit(definition, node)
        results = result if isinstance(result, tuple) else (result,)
        if len(results) < len([o for o in node.outputs if o]):
            raise InternalError(f"{len(results)} results for {len(node.outputs)} outputs", where=f"node {node.label}")
        for name, operand in zip(node.outputs, results, strict=False):
            if name:
                self._set_result(node, name, operand)

    def _has_finite_elements(self, buffer: Buffer) -> bool:
        return has_finite_elements(buffer, self.steps, self.constants)

    def _maybe_broadcast_symbols(self, node: Node) -> Set[str]:
        """Symbols whose size may be 1 where the node broadcasts; none where the operator does not broadcast by itself
        (before version 7, and in other domains)."""
        return frozenset() if node.domain or node.opset < 7 else self._data_symbol_names

    def _commit(self, definition: Definition, node: Node) -> None:
        """Adds a definition's stages: loads of known elements become expressions, and stages of constants become
        constants."""
        self._constant_elements.update(definition.derived_elements)
        for stage in definition.stages:
            if isinstance(stage, RoutineStage | SizesStage):
                step = make_step(stage, node)
                self._add_runtime_step(step, FallbackResults(data_symbols=list(step.data_symbols)))
                continue
            array = as_constant_array(stage.output, self._constant_elements.get(stage.output))
            simplified = substitute_constants(stage, self._constant_elements)
            if array is None:
                array = fold_stage(simplified, self.constants)
            if array is None:
                self.steps.append(simplified)
                continue
            self.constants[stage.output.name] = array
            if (elements := literal_elements(array)) is not None:
                self._constant_elements[stage.output] = elements
        for condition, message in definition.constraints:
            self.constraints.append(Constraint(condition, message))

    def _set_result(self, node: Node, name: str, operand: OpValue) -> None:
        known = operand.known_elements
        operand = OpValue(operand.buffer, self._constant_elements.get(operand.buffer) if known is None else known)
        what = limit_violation(operand)
        if what is not None:
            self._fail_values((name,), Defect("shape", f"node {node.label}", f"computes '{name}' {what}"))
            return
        self.operands[name] = operand
        self._check_declared(node, name, operand.buffer)

    def _check_declared(self, node: Node, name: str, computed: Buffer) -> None:
        """Compares a result with its declared type: another dtype is a problem, another shape a warning only."""
        mismatch = declared_mismatch(self.graph, node, name, computed)
        if isinstance(mismatch, Defect):
            self.problems.append(mismatch)
        elif mismatch:
            self.shape_mismatches.append(mismatch)

    def _fail_values(self, outputs: Iterable[str], problem: Defect) -> None:
        """Records a problem and continues with the declared types of the outputs where they are literal."""
        self.problems.append(problem)
        self._recover_values(outputs)

    def _recover_values(self, outputs: Iterable[str]) -> None:
        for name in outputs:
            declared = self.graph.declared_types.get(name) if name else None
            if declared is not None and all(isinstance(s, Const) for s in declared.shape):
                self.operands[name] = OpValue(Buffer(self._namer.make_name(name), declared.shape, declared.dtype))
            elif name:
                self._failed_values.add(name)

    def _lower_to_fallback(self, node: Node, reason: str) -> None:
        outside = self._fallback_context(node)
        wanted = [o for o in node.outputs if o and o in self._used_values]
        results = infer_results(node, outside, wanted, self._namer.make_name)
        self._opaque_types |= results.opaque_types
        self._set_runtime_results(node, results)
        step = make_fallback(node, replace(outside, opaque_types=self._opaque_types), results, reason)
        if isinstance(step, Defect):
            self.problems.append(step)
        else:
            self._add_runtime_step(step, results)

    def _set_runtime_results(self, node: Node, results: FallbackResults) -> None:
        """Makes the result buffers of a node that the runtime executes operands of later nodes."""
        for name, buffer in results.buffers.items():
            what = None if buffer.dtype is opaque else limit_violation(OpValue(buffer))
            if what is not None:
                self._fail_values((name,), Defect("shape", f"node {node.label}", f"computes '{name}' {what}"))
                continue
            self.operands[name] = OpValue(buffer)
            if buffer.dtype is not opaque:
                self._check_declared(node, name, buffer)

    def _add_runtime_step(self, step: RuntimeStep, results: FallbackResults) -> None:
        self.steps.append(step)
        self.data_symbols += results.data_symbols
        self._data_symbol_names.update(v.name for v in results.data_symbols)
        self.constraints += results.constraints

    def _fallback_context(self, node: Node) -> FallbackContext:
        feeds: dict[str, Buffer] = {}
        constants: dict[str, Array] = {}
        operands: dict[str, OpValue] = {}
        loose: list[Node] = []
        for value in dict.fromkeys(v for v in node.inputs if v):
            if value in self._opaque_constants:
                loose.append(self._opaque_constants[value])
                continue
            operand = self._operand(value)
            if operand is None:
                continue
            operands[value] = operand
            if operand.buffer.name in self.constants:
                constants[value] = self.constants[operand.buffer.name]
            else:
                feeds[value] = operand.buffer
        return FallbackContext(
            feeds, constants, operands, self.graph, self._solved, loose, self._opaque_types, self._shared_sizes,
            self._enclosing.symbols,
        )  # fmt: skip
