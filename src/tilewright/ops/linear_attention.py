"""LinearAttention and CausalConvWithState: layers whose memory of earlier positions is a state of fixed size."""

from tilewright.errors import ShapeError
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.nodes import Expr, const
from tilewright.expr.operations import cast, select, unary
from tilewright.expr.traversal import is_one
from tilewright.ops.cast import convert
from tilewright.ops.checks import expect_rank, expect_shape, expect_size
from tilewright.ops.contraction import accumulator_dtype, epilogue, sum_over
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.routine_call import call_routine
from tilewright.ops.routines.linear_attention import linear_attention_steps

_GATED, _CORRECTING = ("gated", "gated_delta"), ("delta", "gated_delta")


@operator("LinearAttention", ignores=("chunk_size",))
def linear_attention(d: Definition) -> tuple[OpValue, ...]:
    """Queries times a state to which each position adds key * value, after the rule of `update_rule`

    Raises:
        ShapeError: operands do not fit, or the rule needs others.
    """
    heads, groups = d.attr_int("q_num_heads", 0), d.attr_int("kv_num_heads", 0)
    if groups < 1 or heads < 1 or heads % groups:
        what = f"expected a positive kv_num_heads that divides q_num_heads, got {groups} and {heads}"
        raise ShapeError(what, where=f"node {d.label}")
    rule = _rule(d)
    query, key, value = (d.input(k) for k in range(3))
    for x, what in ((query, "query"), (key, "key"), (value, "value")):
        expect_rank(d, x, 3, what)
    batch, steps, hidden = query.shape
    wide = accumulator_dtype(query.dtype)
    d.require((hidden % heads).equals(0), f"query: expected a multiple of {heads} heads, got {hidden}")
    depth = hidden // heads
    expect_shape(d, key, (batch, steps, depth * groups), "key")
    expect_shape(d, value, (batch, steps, value.shape[2]), "value")
    d.require((value.shape[2] % groups).equals(0), f"value: expected a multiple of {groups}, got {value.shape[2]}")
    size = value.shape[2] // groups
    past = d.optional(3)
    if past is not None:
        expect_shape(d, past, (batch, const(groups), depth, size), "past_state")
    state_shape = (batch, const(groups), depth, size)
    before = d.compute(state_shape, lambda *_: const(0, wide)) if past is None else convert(d, past, wide)
    operands = [convert(d, x, wide) for x in (query, key, value)]
    operands += [_factors(d, groups, depth), _rates(d, groups), before]
    total, after = call_routine(
        d, linear_attention_steps, operands, [((batch, steps, const(heads), size), wide), (state_shape, wide)],
        (batch, steps, groups, heads // groups, depth, size, int(rule in _CORRECTING)), [(size, wide)],
    )  # fmt: skip
    scale = d.attr_float("scale", 0.0)
    factor = const(scale, wide) if scale else const(1, wide) / unary("sqrt", cast(wide, depth))
    scaled = d.compute(total.shape, lambda *i: cast(query.dtype, total[i] * factor))
    y = d.view(scaled, (batch, steps, size * heads))
    return y, convert(d, after, query.dtype if past is None else past.dtype)


def _rule(d: Definition) -> str:
    rule = d.attr_str("update_rule", "gated_delta")
    if rule not in ("linear", *_GATED, *_CORRECTING):
        what = f"update_rule: expected linear, gated, delta or gated_delta, got {rule!r}"
        raise ShapeError(what, where=f"node {d.label}")
    for position, name, rules in ((4, "decay", _GATED), (5, "beta", _CORRECTING)):
        if (d.optional(position) is not None) != (rule in rules):
            what = f"update_rule {rule}: expected {'an' if rule in rules else 'no'} input {name}"
            raise ShapeError(what, where=f"node {d.label}")
    return rule


def _factors(d: Definition, groups: int, depth: Expr) -> OpValue:
    """exp(decay) of every row of the state, [batch, steps, heads, depth]; 1 without a decay."""
    batch, steps, _ = d.input(0).shape
    wide = accumulator_dtype(d.input(0).dtype)
    shape = (batch, steps, const(groups), depth)
    decay = d.optional(4)
    if decay is None:
        return d.compute(shape, lambda *_: const(1, wide))
    expect_rank(d, decay, 3, "decay")
    by_row = not can_prove(decay.shape[2].equals(groups))
    expect_shape(d, decay, (batch, steps, depth * groups if by_row else const(groups)), "decay")

    def body(b: Expr, t: Expr, h: Expr, k: Expr) -> Expr:
        return unary("exp", cast(wide, decay[b, t, h * depth + k if by_row else h]))

    return d.compute(shape, body)


def _rates(d: Definition, groups: int) -> OpValue:
    """The rate of each head's correction, [batch, steps, heads]; 1 without any."""
    batch, steps, _ = d.input(0).shape
    wide, rates = accumulator_dtype(d.input(0).dtype), d.optional(5)
    shape = (batch, steps, const(groups))
    if rates is None:
        return d.compute(shape, lambda *_: const(1, wide))
    expect_rank(d, rates, 3, "beta")
    is_common = is_one(rates.shape[2])
    expect_shape(d, rates, (batch, steps, const(1 if is_common else groups)), "beta")
    return d.compute(shape, lambda *i: cast(wide, rates[i[0], i[1], const(0) if is_common else i[2]]))


@operator("CausalConvWithState")
def causal_conv_with_state(d: Definition) -> tuple[OpValue, ...]:
    """Each channel convolved with its weights over earlier positions, of which the last ones of a call are the state

    Raises:
        ShapeError: operands do not fit, or the activation is unknown.
    """
    x, w, bias, past = d.input(0), d.input(1), d.optional(2), d.optional(3)
    expect_rank(d, x, 3, "input")
    batch, channels, length = x.shape
    expect_rank(d, w, 3, "weight")
    taps = w.shape[2]
    expect_shape(d, w, (channels, const(1), taps), "weight")
    d.require(taps >= 1, f"weight: expected at least one tap, got {taps}")
    activation = d.attr_str("activation", "none")
    if activation not in ("none", "silu", "swish"):
        raise ShapeError(f"activation: expected none, silu or swish, got {activation!r}", where=f"node {d.label}")
    if past is not None:
        expect_shape(d, past, (batch, channels, taps - 1), "past_state")
    if bias is not None:
        expect_rank(d, bias, 1, "bias")
        expect_size(d, bias.shape[0], channels, "bias")
    wide = accumulator_dtype(x.dtype)

    def padded(n: Expr, c: Expr, t: Expr) -> Expr:
        before = const(0, x.dtype) if past is None else past[n, c, t]
        return select(t < taps - 1, before, x[n, c, t - (taps - 1)])

    joined = d.compute((batch, channels, length + taps - 1), padded)
    total = sum_over(
        d, x.shape, (taps,),
        lambda i, r: cast(wide, joined[i[0], i[1], i[2] + r[0]]) * cast(wide, w[i[1], const(0), r[0]]),
    )  # fmt: skip
    y = epilogue(d, total, x.dtype, None if bias is None else lambda i: cast(wide, bias[i[1]]))
    if activation != "none":
        product = y

        def silu(*i: Expr) -> Expr:
            value = cast(wide, product[i])
            return cast(x.dtype, value * unary("sigmoid", value))

        y = d.compute(x.shape, silu)
    return y, d.compute((batch, channels, taps - 1), lambda *i: joined[i[0], i[1], i[2] + length])
