"""Inlining of element-wise computations into their consumers.

A producer is inlined where recomputing its elements costs no more than storing and loading them: it has one consumer,
which reads every element at most once, or its body is so cheap that repetition does not matter.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from tilewright.expr.algebra.polynomial import polynomial
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Axis, Computation, iteration_space_size
from tilewright.expr.dtype import DTYPES
from tilewright.expr.nodes import Binary, Buffer, Expr, Load, Unary, Var, const
from tilewright.expr.pattern import Pattern, is_same_element, pattern_of, product_operands
from tilewright.expr.traversal import free_vars, is_one, loads, post_order, replace_loads
from tilewright.graph.program import Program, Step

MAX_NODES = 160
"""Expression nodes up to which bodies are inlined."""

MAX_WEIGHT = 1 << 11
"""The same limit with shared nodes counted at every use: x * x ten times in a row has few nodes and a long text."""

CHEAP_OPS = frozenset(("add", "sub", "mul", "neg", "min", "max", "abs", "floordiv", "mod", "and", "or", "not",
                   "eq", "ne", "lt", "le", "gt", "ge"))  # fmt: skip


def inline_scalars(program: Program) -> Program:
    """The program with loads of one-element constants replaced by literals."""
    scalars = {
        name: const(data.reshape(-1)[0].item(), DTYPES[data.dtype.name])
        for name, data in program.constants.items()
        if data.size == 1 and data.dtype.name in DTYPES
    }

    def load(x: Load) -> Expr:
        return scalars.get(x.buffer.name, x)

    steps = (replace(s, body=replace_loads(s.body, load)) if isinstance(s, Computation) else s for s in program.steps)
    return replace(program, steps=tuple(steps))


def inline_elementwise(program: Program) -> Program:
    """The program with element-wise computations inlined where that is cheap or where they have one use; outputs stay.

    Iterated to a fixed point: several users of a value may become one, as x + 3 and x do in x * (x + 3).
    """
    once = _inline_once(program)
    return once if len(once.steps) == len(program.steps) else inline_elementwise(once)


def _inline_once(program: Program) -> Program:
    """The program after one pass over the steps, producers before their consumers."""
    pinned = {buffer.name for _, buffer in program.outputs}
    steps: list[Step | None] = list(program.steps)
    readers: dict[Buffer, list[int]] = {}
    for j, step in enumerate(program.steps):
        for b in dict.fromkeys(step.inputs):
            readers.setdefault(b, []).append(j)
    for k in range(len(steps)):
        producer = steps[k]
        if not isinstance(producer, Computation) or producer.is_reduction or producer.output.name in pinned:
            continue
        users = readers.get(producer.output, [])
        consumers = [c for j in users if isinstance(c := steps[j], Computation)]
        if not users or len(consumers) < len(users):
            continue
        is_transpose = is_constant_transpose(producer, program.constants)
        if not all(
            _can_inline(producer, c, len(users)) or (is_transpose and product_operands(c.body) is not None)
            for c in consumers
        ):
            continue
        only_moved = all(pattern_of(c) is Pattern.DATA_MOVEMENT for c in consumers)
        if only_moved and _is_reduction_epilogue(k, steps, readers):
            continue
        for j, consumer in zip(users, consumers, strict=True):
            steps[j] = inline_into(producer, consumer)
        steps[k] = None
        for b in producer.inputs:
            readers[b] = sorted({*readers[b], *users} - {k})
    return replace(program, steps=tuple(s for s in steps if s is not None))


def _is_reduction_epilogue(k: int, steps: Sequence[Step | None], readers: Mapping[Buffer, Sequence[int]]) -> bool:
    """Whether step k reads the results of a reduction at its own indices and is their only reader, so that it can be
    fused as the reduction's epilogue (a copy of its results could not)."""
    step = steps[k]
    if not isinstance(step, Computation):
        return False
    reduced = {s.output for s in steps if isinstance(s, Computation) and s.is_reduction}
    index = tuple(a.var for a in step.axes)
    return any(
        x.buffer in reduced
        and readers[x.buffer] == [k]
        and x.buffer.shape == step.output.shape
        and is_same_element(x, index)
        for x in loads(step.body)
    )


def is_constant_transpose(c: Computation, constants: Container[str]) -> bool:
    """Whether a computation only permutes a constant's elements: contractions choose the layout of constant operands
    themselves, so they can read the original."""
    return (
        isinstance(c.body, Load) and c.body.buffer.name in constants and all(isinstance(i, Var) for i in c.body.indices)
    )


def _can_inline(producer: Computation, consumer: Computation, users: int) -> bool:
    sizes = [sum(1 for _ in islice(post_order(c.body), MAX_NODES + 1)) for c in (producer, consumer)]
    if max(sizes) > MAX_NODES:
        return False
    reads = [x for x in loads(consumer.body) if x.buffer == producer.output]
    size = sizes[0]
    if len(reads) * size + sizes[1] > MAX_NODES:
        return False
    if _weight_after_inlining(consumer.body, dict.fromkeys(reads, producer.body.tree_size)) > MAX_WEIGHT:
        return False
    axes = (*consumer.axes, *consumer.reduce_axes)
    reads_once = len(reads) == 1 and (
        iteration_space_size(producer.axes) is iteration_space_size(axes) or _is_injective_read(reads[0], axes)
    )
    if consumer.is_reduction:
        return reads_once and users == 1 and product_operands(consumer.body) is None
    return (reads_once and users == 1) or (is_cheap(producer.body) and size * len(reads) * users <= 24)


def _is_injective_read(x: Load, axes: Sequence[Axis]) -> bool:
    """Whether a load provably reads no element at two points of the axes, as in padding: every axis moves the load
    along a dimension that no other axis moves it along. Data-dependent indices may repeat."""
    variables = {a.var for a in axes if not is_one(a.extent)}
    separated: set[Var] = set()
    for i in x.indices:
        used = variables & free_vars(i)
        if (
            loads(i)
            or len(used) > 1
            or any(m != tuple(used) for m in polynomial(i) if any(used & free_vars(e) for e in m))
        ):
            return False
        separated |= used
    return separated == variables


def _weight_after_inlining(body: Expr, replaced_weights: Mapping[Load, int]) -> int:
    """The weight of an expression after some of its loads are replaced by expressions of the given weights."""
    weights: dict[Expr, int] = {**replaced_weights}
    for node in post_order(body):
        if node not in weights:
            weights[node] = 1 + sum(weights[c] for c in node.children())
    return weights[body]


def is_cheap(body: Expr) -> bool:
    """Whether a body is a handful of simple instructions with at most one load."""
    if len(loads(body)) > 1:
        return False
    return all(n.op in CHEAP_OPS for n in post_order(body) if isinstance(n, Unary | Binary))


def inline_into(producer: Computation, consumer: Computation) -> Computation:
    """The consumer with every load of the producer's output replaced by the producer's body."""
    axes = [a.var for a in producer.axes]

    def load(x: Load) -> Expr:
        if x.buffer != producer.output:
            return x
        mapping: Mapping[Var, Expr] = dict(zip(axes, x.indices, strict=True))
        return substitute(producer.body, mapping)

    return replace(consumer, body=replace_loads(consumer.body, load), label=consumer.label or producer.label)
