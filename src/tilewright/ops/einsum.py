"""Einsum: the equation is parsed, then operands are contracted pairwise from left to right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.errors import ShapeError, pluralize
from tilewright.expr.nodes import Expr, as_expr, const
from tilewright.expr.operations import cast
from tilewright.expr.traversal import is_one
from tilewright.ops.checks import expect_dtype, expect_size
from tilewright.ops.contraction import accumulator_dtype, epilogue, sum_over
from tilewright.ops.definition import Definition, OpValue, operator

Labels = tuple[str, ...]
"""One label per dimension; those of an ellipsis are "...0", "...1", counted from the last dimension."""


@dataclass(frozen=True, slots=True)
class Equation:
    """A parsed equation: the labels of every operand and of the result."""

    inputs: tuple[Labels, ...]
    output: Labels


def parse_equation(text: str, ranks: Sequence[int]) -> Equation:
    """The labels of an equation such as "bij,bjk->bik" or "...ij->...ji".

    Args:
        text: the equation; spaces are ignored; without "->" the result has the labels that occur once, sorted.
        ranks: of the operands.

    Raises:
        ValueError: the equation is malformed or does not match the operands.
    """
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"expected {pluralize(len(ranks), 'operand')}, got {len(terms)}")
    ellipsis_rank = max(
        (rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks, strict=True) if "..." in t), default=0
    )
    inputs: list[Labels] = []
    for position, (term, rank) in enumerate(zip(terms, ranks, strict=True)):
        num_labels = len(term.replace("...", ""))
        if num_labels > rank or ("..." not in term and num_labels != rank):
            raise ValueError(f"operand {position} {term!r}: expected {pluralize(num_labels, 'dimension')}, got {rank}")
        inputs.append(_labels(term, rank - num_labels))
    if arrow:
        output = _labels(right, ellipsis_rank)
    else:
        letters = [c for c in left if c.isalpha()]
        ellipsis = _labels("...", ellipsis_rank) if "..." in left else ()
        output = (*ellipsis, *sorted(c for c in set(letters) if letters.count(c) == 1))
    if len(set(output)) != len(output):
        raise ValueError(f"the result names a label twice: {right!r}")
    unknown = [c for c in output if not any(c in labels for labels in inputs)]
    if unknown:
        raise ValueError(f"the result has label {unknown[0]!r}, which no operand has")
    return Equation(tuple(inputs), output)


def _labels(term: str, ellipsis_rank: int) -> Labels:
    prefix, ellipsis, suffix = term.partition("...")
    if not all(c.isalpha() for c in prefix + suffix):
        raise ValueError(f"expected letters and one ellipsis, got {term!r}")
    middle = tuple(f"...{k}" for k in reversed(range(ellipsis_rank))) if ellipsis else ()
    return (*prefix, *middle, *suffix)


@dataclass(frozen=True, slots=True)
class _Term:
    operand: OpValue
    labels: Labels

    def at(self, env: Mapping[str, Expr]) -> Expr:
        index = tuple(
            const(0) if is_one(n) else env[label] for label, n in zip(self.labels, self.operand.shape, strict=True)
        )
        return self.operand[index]


@operator("Einsum")
def einsum(d: Definition) -> OpValue:
    """Sums over the labels that the result lacks, of the product of all operands"""
    operands = [d.input(k) for k in range(len(d.operands))]
    text = d.attr_str("equation", "")
    try:
        equation = parse_equation(text, [x.rank for x in operands])
    except ValueError as error:
        raise ShapeError(f"equation {text!r}: {error}", where=f"node {d.label}") from error
    dtype = operands[0].dtype
    for k, x in enumerate(operands):
        expect_dtype(d, x, dtype, f"operand {k}")
    sizes = _sizes(d, operands, equation)
    terms = [_Term(x, labels) for x, labels in zip(operands, equation.inputs, strict=True)]
    while len(terms) > 2:
        later = {c for t in terms[2:] for c in t.labels} | set(equation.output)
        remaining = tuple(c for c in dict.fromkeys((*terms[0].labels, *terms[1].labels)) if c in later)
        terms = [_Term(_contract(d, terms[:2], remaining, sizes), remaining), *terms[2:]]
    return epilogue(d, _contract(d, terms, equation.output, sizes), dtype)


def _sizes(d: Definition, operands: Sequence[OpValue], equation: Equation) -> dict[str, Expr]:
    sizes: dict[str, Expr] = {}
    for x, labels in zip(operands, equation.inputs, strict=True):
        for label, size in zip(labels, x.shape, strict=True):
            common = sizes.get(label, as_expr(1))
            sizes[label] = (
                size if is_one(common) else common if is_one(size) else expect_size(d, size, common, f"label {label!r}")
            )
    return sizes


def _contract(d: Definition, terms: Sequence[_Term], output: Labels, sizes: Mapping[str, Expr]) -> OpValue:
    reduced = tuple(c for c in dict.fromkeys(c for t in terms for c in t.labels) if c not in output)
    wide = accumulator_dtype(terms[0].operand.dtype)

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        env = dict(zip((*output, *reduced), (*i, *r), strict=True))
        value = cast(wide, terms[0].at(env))
        for term in terms[1:]:
            value = value * cast(wide, term.at(env))
        return value

    return sum_over(d, [sizes[c] for c in output], [sizes[c] for c in reduced], body)
