"""What is known at a place inside loops that are being specialised."""

from dataclasses import dataclass, replace

from tilewright.expr.algebra.bounds import NO_BOUNDS, Bounds
from tilewright.expr.nodes import Expr, Var
from tilewright.expr.operations import conjunction
from tilewright.expr.traversal import conjuncts
from tilewright.loops.ir import For
from tilewright.lower.dependencies import DependencyAnalysis


@dataclass(frozen=True, slots=True)
class LoopFacts:
    """What is known at a place.

    Attributes:
        dependencies: of expressions.
        variables: those with one run-time value here: of enclosing loops that are not expanded, and symbols.
        constants: those that are constants in the generated code: of unrolled loops, and of single iterations.
        bounds: ranges of the enclosing loops' variables.
        true_conditions: conditions that hold here, because a branch tested them.
        undecided_conditions: conditions that a branch tested without deciding them.
        false_conjunctions: sets of conditions that do not all hold here.
        depth: number of enclosing branches and peeled loops.
        is_in_parallel: whether a parallel loop is around.
    """

    dependencies: DependencyAnalysis
    variables: frozenset[Var]
    constants: frozenset[Var] = frozenset()
    bounds: Bounds = NO_BOUNDS
    true_conditions: frozenset[Expr] = frozenset()
    undecided_conditions: frozenset[Expr] = frozenset()
    false_conjunctions: tuple[frozenset[Expr], ...] = ()
    depth: int = 0
    is_in_parallel: bool = False

    def inside(self, loop: For, is_constant: bool = False) -> "LoopFacts":
        """The facts in the body of a loop; `is_constant` where its variable is a constant in the generated code."""
        bounds = self.bounds.with_loop(loop.var, loop.extent)
        if is_constant:
            constants, variables = self.constants | {loop.var}, self.variables - {loop.var}
        else:
            constants, variables = self.constants, self.variables | {loop.var}
        return replace(self, variables=variables, constants=constants, bounds=bounds)

    def after_branch(self, conditions: tuple[Expr, ...], holds: bool | None) -> "LoopFacts":
        """The facts in one arm of a branch: the conditions all hold (True), do not all hold (False), or are undecided
        (None)."""
        tested, depth = frozenset(conditions), self.depth + 1
        if holds:
            return replace(self, true_conditions=self.true_conditions | tested, depth=depth)
        if holds is None:
            return replace(self, undecided_conditions=self.undecided_conditions | tested, depth=depth)
        return replace(self, false_conjunctions=(*self.false_conjunctions, tested), depth=depth)

    def under(self, conditions: tuple[Expr, ...]) -> "LoopFacts":
        """The facts behind a branch without a second arm."""
        return replace(self, true_conditions=self.true_conditions | frozenset(conditions)) if conditions else self

    def is_false(self, condition: Expr) -> bool:
        """Whether the condition is known not to hold here."""
        parts = frozenset(conjuncts(condition))
        return any(d <= parts for d in self.false_conjunctions)

    def residual(self, condition: Expr) -> Expr:
        """The condition without the conjuncts that are known to hold here."""
        if not self.true_conditions:
            return condition
        return conjunction(*(c for c in conjuncts(condition) if c not in self.true_conditions))
