"""Sizes of a node's operands that its definition requires to be equal, and one of them in place of the other."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.nodes import Expr
from tilewright.ops.definition import Definition, simplest_size


@dataclass(frozen=True, slots=True)
class EqualSizes:
    """Two sizes that have to be equal, though nothing proves that the simpler one is not the larger one.

    Attributes:
        condition: that they are equal.
        size: the more complicated one.
        simpler: what may stand for it.
    """

    condition: Expr
    size: Expr
    simpler: Expr


def required_equal_sizes(definition: Definition) -> Sequence[EqualSizes]:
    """The pairs of operands' sizes that a definition requires to be equal and that aren't provably safe to exchange.

    Results get the simpler size of a pair; where it is provably not the larger one, no read is out of range.
    """
    sizes = list(dict.fromkeys(n for o in definition.operands if o is not None for n in o.shape))
    required = {condition for condition, _ in definition.constraints}
    pairs: list[EqualSizes] = []
    for i, a in enumerate(sizes):
        for b in sizes[:i]:
            condition, simpler = a.equals(b), simplest_size(a, b)
            other = b if simpler is a else a
            if (condition in required or b.equals(a) in required) and not can_prove(simpler <= other):
                pairs.append(EqualSizes(condition, other, simpler))
    return pairs


def size_substitution(pairs: Iterable[EqualSizes], assumed: Set[Expr]) -> dict[Expr, Expr]:
    """The simpler size by the size that it replaces, for pairs that may be assumed to be equal.

    Args:
        pairs: in the order of `required_equal_sizes`.
        assumed: conditions.
    """
    replacements: dict[Expr, Expr] = {}
    for pair in pairs:
        if pair.condition in assumed:
            replacements[pair.size] = replacements.get(pair.simpler, pair.simpler)
    return replacements


def replace_sizes(definition: Definition, same: Mapping[Expr, Expr]) -> Definition:
    """A fresh definition on views of its operands whose sizes are replaced by equal ones."""
    views = replace(definition, stages=[], constraints=list(definition.constraints), derived_elements={}, names_made=0)
    operands = [o and views.view(o, [same.get(n, n) for n in o.shape]) for o in definition.operands]
    return replace(views, operands=tuple(operands))
