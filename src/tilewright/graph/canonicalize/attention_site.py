"""Attention in a program, found by its structure: a contraction, element-wise scores, a softmax over the last axis, and
a second contraction of the weights over that axis.

The softmax may normalize its weights or leave that to the second contraction, and it may be spelled out as a maximum, a
difference, exponentials, a sum and a quotient.
"""

from dataclasses import dataclass, replace

from tilewright.expr.computation import Axis, Computation, Reducer
from tilewright.expr.nodes import Binary, Buffer, Const, Expr, Load, Select, Unary, Var
from tilewright.expr.pattern import is_sum_of_products, product_operands
from tilewright.expr.traversal import is_one, loads
from tilewright.graph.canonicalize.def_use import DefUse, is_own_element


@dataclass(frozen=True, slots=True)
class AttentionSite:
    """The stages of an attention.

    Attributes:
        scores: the contraction of queries and keys.
        masked: the result that the softmax reads.
        score: its elements over the results of `scores`, at the axes of `masked_axes`.
        masked_axes: the axes of `masked`; the last one is that of the keys.
        powers: the exponentials.
        masks_rows: whether a row of -inf gives zeros.
        clears_nan: whether every weight that is NaN is replaced by 0.
        mix: the contraction of weights and values.
        weights: the load of the weights in `mix`.
        values: the load of the values in `mix`.
        result: the computation that has the normalized results: `mix`, or its epilogue.
    """

    scores: Computation
    masked: Buffer
    score: Expr
    masked_axes: tuple[Axis, ...]
    powers: Computation
    masks_rows: bool
    clears_nan: bool
    mix: Computation
    weights: Load
    values: Load
    result: Computation


@dataclass(frozen=True, slots=True)
class _Softmax:
    """A softmax over the last axis: exponentials whose sum is `total`."""

    powers: Computation
    masked: Buffer
    masks_rows: bool
    clears_nan: bool = False


def attention_sites(uses: DefUse) -> list[AttentionSite]:
    """All attentions of a program whose intermediates nothing else reads, in order."""
    sites = (_site(s, uses) for s in uses.program.steps if isinstance(s, Computation) and is_sum_of_products(s))
    return [s for s in sites if s is not None]


def _site(mix: Computation, uses: DefUse) -> AttentionSite | None:
    operands = product_operands(mix.body)
    if operands is None or len(mix.reduce_axes) != 1 or not _is_plain_product(mix):
        return None
    for weights, values in (operands, operands[::-1]):
        if weights.indices[-1] is not mix.reduce_axes[0].var or weights.buffer == values.buffer:
            continue
        softmax = _normalized(weights, uses)
        result: Computation | None = mix
        if softmax is None:
            softmax, result = _normalized_later(weights, mix, uses)
        if softmax is None or result is None:
            continue
        site = _with_scores(softmax, mix, weights, values, result, uses)
        if site is not None:
            return site
    return None


def _is_plain_product(c: Computation) -> bool:
    """Whether a contraction multiplies elements without conversions."""
    return isinstance(c.body, Binary) and isinstance(c.body.a, Load) and isinstance(c.body.b, Load)


def _normalized(weights: Load, uses: DefUse) -> _Softmax | None:
    """The softmax whose quotients, or products with an inverse, a contraction reads."""
    c, clears_nan = _without_nan_guard(weights.buffer, uses)
    if c is None or not isinstance(c.body, Binary) or c.body.op not in ("mul", "div"):
        return None
    pairs = [(c.body.a, c.body.b)] + ([(c.body.b, c.body.a)] if c.body.op == "mul" else [])
    for power, row in pairs:
        if isinstance(power, Load) and is_own_element(power, c) and isinstance(row, Load) and _is_row(row, c):
            total = row.buffer if c.body.op == "div" else _inverted(row.buffer, uses)
            # the sum and the weights read the exponentials
            softmax = None if total is None else _softmax(power.buffer, total, uses, readers=2)
            if softmax is not None:
                return replace(softmax, clears_nan=clears_nan)
    return None


def _without_nan_guard(weights: Buffer, uses: DefUse) -> tuple[Computation | None, bool]:
    """The computation of private weights, and whether they are those that are not NaN, and 0 for others."""
    c = uses.elementwise(weights)
    if c is None or not uses.is_private(weights):
        return None, False
    body = uses.composed(c)
    if not (isinstance(body, Select) and isinstance(body.a, Const) and body.a.value == 0 and isinstance(body.b, Load)):
        return c, False
    guarded, is_nan = body.b, body.cond
    is_guard = isinstance(is_nan, Unary) and is_nan.op == "isnan" and is_nan.a is guarded
    if not is_guard or not is_own_element(guarded, c) or not uses.is_private(guarded.buffer, 2):
        return None, False
    return uses.elementwise(guarded.buffer), True


def _normalized_later(weights: Load, mix: Computation, uses: DefUse) -> tuple[_Softmax | None, Computation | None]:
    """The softmax whose exponentials a contraction reads, and the epilogue that normalizes the results."""
    readers = uses.readers.get(mix.output, [])
    epilogue = readers[0] if len(readers) == 1 and mix.output.name not in uses.pinned else None
    if not isinstance(epilogue, Computation) or epilogue.is_reduction or not isinstance(epilogue.body, Binary):
        return None, None
    body = epilogue.body
    if body.op != "mul" or not isinstance(body.a, Load) or not isinstance(body.b, Load):
        return None, None
    for product, row in ((body.a, body.b), (body.b, body.a)):
        if product.buffer != mix.output or not is_own_element(product, epilogue):
            continue
        place = dict(zip((a.var for a in mix.axes), (a.var for a in epilogue.axes), strict=True))
        if tuple(place.get(i, i) if isinstance(i, Var) else i for i in weights.indices[:-1]) != row.indices:
            continue
        total = _inverted(row.buffer, uses)
        softmax = None if total is None else _softmax(weights.buffer, total, uses, readers=2)
        if softmax is not None:
            return softmax, epilogue
    return None, None


def _inverted(b: Buffer, uses: DefUse) -> Buffer | None:
    """The sums whose inverses a private buffer has, 0 perhaps where the sum is 0."""
    c = uses.elementwise(b)
    if c is None or not uses.is_private(b):
        return None
    body = c.body
    if isinstance(body, Select) and isinstance(body.a, Const) and body.a.value == 0:
        is_zero = body.cond
        if not (isinstance(is_zero, Binary) and is_zero.op == "eq" and isinstance(is_zero.b, Const)):
            return None
        body = body.b
    if isinstance(body, Binary) and body.op == "div" and isinstance(body.a, Const) and body.a.value == 1:
        total = body.b
        if isinstance(total, Load) and is_own_element(total, c):
            return total.buffer
    return None


def _softmax(powers: Buffer, total: Buffer, uses: DefUse, readers: int) -> _Softmax | None:
    """The softmax of exponentials with the given number of readers, given their sums."""
    c = uses.elementwise(powers)
    summed, sum_readers = uses.computation(total), uses.readers.get(total, [])
    if c is None or summed is None or len(sum_readers) != 1 or total.name in uses.pinned:
        return None
    if not uses.is_private(powers, readers) or not _reduces_rows(summed, powers, Reducer.SUM):
        return None
    body = uses.composed(c)
    if not (isinstance(body, Unary) and body.op == "exp" and isinstance(body.a, Binary) and body.a.op == "sub"):
        return None
    masked, shift = body.a.a, body.a.b
    if not isinstance(masked, Load) or not isinstance(shift, Load) or not is_own_element(masked, c):
        return None
    if not _is_row(shift, c):
        return None
    largest, masks_rows = _row_maximum(shift.buffer, uses)
    if largest is None or not uses.is_private(masked.buffer, 2):
        return None
    if not _reduces_rows(largest, masked.buffer, Reducer.MAX):
        return None
    return _Softmax(c, masked.buffer, masks_rows)


def _row_maximum(shift: Buffer, uses: DefUse) -> tuple[Computation | None, bool]:
    """The maximum of a row that is subtracted, and whether it is replaced by 0 where it is -inf."""
    c = uses.computation(shift)
    if c is None or not uses.is_private(shift):
        return None, False
    if c.is_reduction:
        return c, False
    body = c.body
    if not (isinstance(body, Select) and isinstance(body.a, Const) and isinstance(body.b, Load)):
        return None, False
    is_masked, largest = body.cond, uses.computation(body.b.buffer)
    tests_infinity = (
        isinstance(is_masked, Binary) and is_masked.op == "eq" and is_masked.a is body.b
        and isinstance(is_masked.b, Const) and is_masked.b.value == float("-inf")
    )  # fmt: skip
    if not tests_infinity or body.a.value != 0 or largest is None or not uses.is_private(largest.output):
        return None, False
    return largest, True


def _with_scores(
    softmax: _Softmax, mix: Computation, weights: Load, values: Load, result: Computation, uses: DefUse
) -> AttentionSite | None:
    """The site whose masked scores come from a contraction of one element-wise expression."""
    masked = uses.computation(softmax.masked)
    if masked is None:
        return None
    if masked.is_reduction:
        index = tuple(a.var for a in masked.axes)
        scores, score = masked, Load(masked.output, index)
    else:
        score = uses.composed(masked)
        found = [
            (c, x) for x in loads(score)
            if (c := uses.computation(x.buffer)) is not None and is_sum_of_products(c) and is_own_element(x, masked)
            and x.buffer.shape == masked.output.shape and uses.is_private(x.buffer)
        ]  # fmt: skip
        if len(found) != 1:
            return None
        scores = found[0][0]
    if not is_sum_of_products(scores) or not _is_plain_product(scores) or len(scores.reduce_axes) != 1:
        return None
    return AttentionSite(
        scores, softmax.masked, score, masked.axes, softmax.powers, softmax.masks_rows,
        softmax.clears_nan, mix, weights, values, result
    )  # fmt: skip


def _reduces_rows(c: Computation, source: Buffer, reducer: Reducer) -> bool:
    """Whether a reduction combines the elements of each row of a tensor."""
    if c.reducer is not reducer or not isinstance(c.body, Load) or c.body.buffer != source or len(c.reduce_axes) != 1:
        return False
    index = (*(a.var for a in c.axes), c.reduce_axes[0].var)
    outer = [(i, n) for i, n in zip(c.body.indices, source.shape, strict=True) if not is_one(n)]
    expected = [(a.var, a.extent) for a in (*c.axes, *c.reduce_axes) if not is_one(a.extent)]
    return [i for i, _ in outer] == [v for v, _ in expected] and c.body.indices[-1] is index[-1]


def _is_row(x: Load, c: Computation) -> bool:
    """Whether a load is at the computation's own place without the last axis."""
    index = [a.var for a in c.axes[:-1] if not is_one(a.extent)]
    return [i for i, n in zip(x.indices, x.buffer.shape, strict=True) if not is_one(n)] == index
