"""Steps for calls of routines and for data-dependent sizes."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tilewright.expr.nodes import Expr, Var
from tilewright.graph.data_dependent_shapes import DataDependentSize
from tilewright.graph.fallback import FallbackContext, FallbackResults, result_size
from tilewright.graph.ir import Node
from tilewright.graph.program import RoutineStep, RuntimeStep, SizesStep
from tilewright.routine.stages import BoundSize, DataSize, RoutineStage, SizesStage


@dataclass(slots=True)
class SizeSymbols:
    """Makes the symbols of one node's sizes; a definition that is asked twice gets the same ones.

    Attributes:
        node: the node.
        context: makes its surroundings.
        prefix: of the symbols' names.
    """

    node: Node
    context: Callable[[], FallbackContext]
    prefix: str
    _bound: dict[int, BoundSize] = field(default_factory=dict[int, BoundSize])

    def make(self, size: DataSize) -> BoundSize:
        """The symbol of the size along an axis of the node's first result."""
        if size.axis not in self._bound:
            results, sizes = FallbackResults(), dict[str, tuple[Var, Expr]]()
            value = next((o for o in self.node.outputs if o), self.node.name)
            dependent = DataDependentSize(str(size.axis), size.upper_bound, size.origin)
            place = (value, self.prefix, size.axis)
            symbol, stands_for = result_size(self.node, place, dependent, self.context(), sizes, results)
            constraints = tuple((c.condition, c.message) for c in results.constraints)
            if not isinstance(symbol, Var):
                raise TypeError(f"the size {symbol} is no symbol")
            self._bound[size.axis] = BoundSize(symbol, stands_for, bool(results.data_symbols), constraints)
        return self._bound[size.axis]


def make_step(stage: RoutineStage | SizesStage, node: Node) -> RuntimeStep:
    """The step of a stage that a node's definition emits."""
    if isinstance(stage, SizesStage):
        return SizesStep(
            nodes=(node,), inputs=(stage.source,), outputs=(), runtime_shapes=(), data_symbols=stage.symbols,
            positions=stage.positions,
        )  # fmt: skip
    return RoutineStep(
        nodes=(node,), inputs=tuple(dict.fromkeys(stage.arguments)), outputs=stage.outputs,
        runtime_shapes=tuple(b.shape for b in stage.outputs), data_symbols=(), routine=stage.routine,
        arguments=stage.arguments, scratch=stage.scratch, scalars=stage.scalars,
    )  # fmt: skip
