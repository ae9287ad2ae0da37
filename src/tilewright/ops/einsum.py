"""Einstein sums: parsing of the equation, then one contraction per pair of operands, from left to right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.errors import ShapeError
from tilewright.expr.nodes import Expr, as_expr, const
from tilewright.expr.operations import cast
from tilewright.ops.contraction import accumulator_dtype, epilogue, expect_dtype, expect_size, sum_over
from tilewright.ops.definition import Definition, Operand, is_one, operator

Labels = tuple[str, ...]
"""One label per dimension; the dimensions of an ellipsis are called "...0", "...1", counted from the last."""


@dataclass(frozen=True, slots=True)
class Equation:
    """A parsed equation: the labels of every operand and of the result."""

    inputs: tuple[Labels, ...]
    output: Labels


def parse_equation(text: str, ranks: Sequence[int]) -> Equation:
    """The labels of an equation such as "bij,bjk->bik" or "...ij->...ji".

    Args:
        text: the equation; blanks are ignored; without "->" the result has the labels that occur once, sorted.
        ranks: of the operands.

    Raises:
        ValueError: the equation is malformed or does not fit the operands; the text says how.
    """
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"expected {len(ranks)} operands, got {len(terms)}")
    dots = max(
        (rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks, strict=True) if "..." in t), default=0
    )
    inputs: list[Labels] = []
    for position, (term, rank) in enumerate(zip(terms, ranks, strict=True)):
        named = len(term.replace("...", ""))
        if named > rank or ("..." not in term and named != rank):
            raise ValueError(f"operand {position} {term!r}: expected {named} dimensions, got {rank}")
        inputs.append(_labels(term, rank - named))
    if arrow:
        output = _labels(right, dots)
    else:
        every = [c for c in left if c.isalpha()]
        ellipsis = _labels("...", dots) if "..." in left else ()
        output = (*ellipsis, *sorted(c for c in set(every) if every.count(c) == 1))
    if len(set(output)) != len(output):
        raise ValueError(f"the result names a label twice: {right!r}")
    unknown = [c for c in output if not any(c in labels for labels in inputs)]
    if unknown:
        raise ValueError(f"the result has label {unknown[0]!r}, which no operand has")
    return Equation(tuple(inputs), output)


def _labels(term: str, dots: int) -> Labels:
    before, ellipsis, after = term.partition("...")
    if not all(c.isalpha() for c in before + after):
        raise ValueError(f"expected letters and one ellipsis, got {term!r}")
    middle = tuple(f"...{k}" for k in reversed(range(dots))) if ellipsis else ()
    return (*before, *middle, *after)


@dataclass(frozen=True, slots=True)
class _Term:
    operand: Operand
    labels: Labels

    def at(self, env: Mapping[str, Expr]) -> Expr:
        index = tuple(
            const(0) if is_one(n) else env[label] for label, n in zip(self.labels, self.operand.shape, strict=True)
        )
        return self.operand[index]


@operator("Einsum")
def einsum(d: Definition) -> Operand:
    """Sums over the labels that the result lacks, of the product of all operands"""
    operands = [d.input(k) for k in range(len(d.operands))]
    text = d.attr_str("equation", "")
    try:
        equation = parse_equation(text, [x.rank for x in operands])
    except ValueError as problem:
        raise ShapeError(f"equation {text!r}: {problem}", where=f"node {d.label}") from problem
    dtype = operands[0].dtype
    for k, x in enumerate(operands):
        expect_dtype(d, x, dtype, f"operand {k}")
    sizes = _sizes(d, operands, equation)
    terms = [_Term(x, labels) for x, labels in zip(operands, equation.inputs, strict=True)]
    while len(terms) > 2:
        later = {c for t in terms[2:] for c in t.labels} | set(equation.output)
        kept = tuple(c for c in dict.fromkeys((*terms[0].labels, *terms[1].labels)) if c in later)
        terms = [_Term(_contract(d, terms[:2], kept, sizes), kept), *terms[2:]]
    return epilogue(d, _contract(d, terms, equation.output, sizes), dtype)


def _sizes(d: Definition, operands: Sequence[Operand], equation: Equation) -> dict[str, Expr]:
    sizes: dict[str, Expr] = {}
    for x, labels in zip(operands, equation.inputs, strict=True):
        for label, size in zip(labels, x.shape, strict=True):
            known = sizes.get(label, as_expr(1))
            sizes[label] = (
                size if is_one(known) else known if is_one(size) else expect_size(d, size, known, f"label {label!r}")
            )
    return sizes


def _contract(d: Definition, terms: Sequence[_Term], output: Labels, sizes: Mapping[str, Expr]) -> Operand:
    summed = tuple(c for c in dict.fromkeys(c for t in terms for c in t.labels) if c not in output)
    wide = accumulator_dtype(terms[0].operand.dtype)

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        env = dict(zip((*output, *summed), (*i, *r), strict=True))
        value = cast(wide, terms[0].at(env))
        for term in terms[1:]:
            value = value * cast(wide, term.at(env))
        return value

    return sum_over(d, [sizes[c] for c in output], [sizes[c] for c in summed], body)
