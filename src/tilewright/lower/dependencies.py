"""What the values of expressions depend on: variables, and memory."""

from dataclasses import dataclass

from tilewright.expr.nodes import Expr, Load, Var
from tilewright.expr.traversal import post_order


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What the value of an expression depends on: variables, and memory."""

    variables: frozenset[Var]
    reads_memory: bool


class DependencyAnalysis:
    """`Dependencies` of expressions, cached."""

    def __init__(self) -> None:
        self._analysed: dict[Expr, Dependencies] = {}

    def __call__(self, e: Expr) -> Dependencies:
        """The dependencies of an expression."""
        dependencies = self._analysed.get(e)
        if dependencies is None:
            for node in post_order(e):
                if node not in self._analysed:
                    self._analysed[node] = self._analyse(node)
            dependencies = self._analysed[e]
        return dependencies

    def _analyse(self, e: Expr) -> Dependencies:
        if isinstance(e, Var):
            return Dependencies(frozenset((e,)), False)
        variables: frozenset[Var] = frozenset()
        reads_memory = isinstance(e, Load)
        for child in e.children():
            dependencies = self._analysed[child]
            variables, reads_memory = variables | dependencies.variables, reads_memory or dependencies.reads_memory
        return Dependencies(variables, reads_memory)
