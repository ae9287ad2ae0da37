"""Inlining of element-wise computations into their consumers, on the level of tensor expressions.

A producer disappears where computing its elements anew costs no more than storing and loading them: it has one
consumer that reads every element once at most, or its body is so cheap that repeating it does not matter.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from tilewright.expr.algebra.polynomial import polynomial
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Axis, Computation, iteration_space_size
from tilewright.expr.dtype import DTYPES
from tilewright.expr.nodes import Binary, Buffer, Cast, Const, Expr, Load, Select, Unary, Var, const
from tilewright.expr.traversal import free_vars, loads, post_order, replace_loads
from tilewright.graph.program import Program, Step
from tilewright.ops.definition import is_one

MAX_NODES = 160
"""Size of an expression beyond which nothing more is inlined into it."""

MAX_WEIGHT = 1 << 11
"""The same with shared parts counted at every place: x * x ten times in a row has few nodes and a long text."""

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
    """The program with cheap or once-used element-wise computations inlined; outputs stay.

    What several steps have used may be used once when these have become one, as x + 3 and x are in x * (x + 3): the
    program is gone through until nothing changes.
    """
    once = _inline_once(program)
    return once if len(once.steps) == len(program.steps) else inline_elementwise(once)


def _inline_once(program: Program) -> Program:
    """The program after going through it once, producers before their consumers."""
    kept_outputs = {buffer.name for _, buffer in program.outputs}
    steps: list[Step | None] = list(program.steps)
    readers: dict[Buffer, list[int]] = {}
    for j, step in enumerate(program.steps):
        for b in dict.fromkeys(step.inputs):
            readers.setdefault(b, []).append(j)
    for k in range(len(steps)):
        producer = steps[k]
        if not isinstance(producer, Computation) or producer.is_reduction or producer.output.name in kept_outputs:
            continue
        users = readers.get(producer.output, [])
        targets = [steps[j] for j in users]
        free = is_constant_transpose(producer, program.constants)
        if not users or not all(
            isinstance(t, Computation)
            and (_can_inline(producer, t, len(users)) or (free and is_contraction_body(t.body)))
            for t in targets
        ):
            continue
        if all(isinstance(t, Computation) and _is_padded_copy(t) for t in targets) and _is_reduction_epilogue(
            k, steps, readers
        ):
            continue
        for j, target in zip(users, targets, strict=True):
            if isinstance(target, Computation):
                steps[j] = inline_into(producer, target)
        steps[k] = None
        for b in producer.inputs:
            readers[b] = sorted({*readers[b], *users} - {k})
    return replace(program, steps=tuple(s for s in steps if s is not None))


def is_copy(c: Computation) -> bool:
    """Whether a computation only puts elements elsewhere."""
    return isinstance(c.body, Load) and not c.is_reduction


def _is_padded_copy(c: Computation) -> bool:
    """Whether a computation only puts elements elsewhere, with constants around them or without."""
    body = c.body
    while isinstance(body, Select) and isinstance(body.b, Const):
        body = body.a
    return isinstance(body, Load) and not c.is_reduction


def _is_reduction_epilogue(k: int, steps: Sequence[Step | None], readers: Mapping[Buffer, Sequence[int]]) -> bool:
    """Whether step k takes over the results of a reduction as they are made, which a copy of its own results can't."""
    step = steps[k]
    if not isinstance(step, Computation):
        return False
    made = {s.output for s in steps if isinstance(s, Computation) and s.is_reduction}
    index = tuple(a.var for a in step.axes)
    return any(
        x.buffer in made
        and readers[x.buffer] == [k]
        and x.buffer.shape == step.output.shape
        and is_same_element(x, index)
        for x in loads(step.body)
    )


def is_same_element(x: Load, index: Sequence[Expr]) -> bool:
    """Whether a load reads at the index; a dimension of one element has only one."""
    return all(i is v or is_one(n) for i, v, n in zip(x.indices, index, x.buffer.shape, strict=True))


def is_constant_transpose(c: Computation, constants: Container[str]) -> bool:
    """Whether a computation only puts a constant's elements elsewhere (a transposition): contractions choose the layout
    of constant operands themselves, so they may as well read the original."""
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
    once = len(reads) == 1 and (
        iteration_space_size(producer.axes) is iteration_space_size(axes) or _is_injective_read(reads[0], axes)
    )
    if consumer.is_reduction:
        return once and users == 1 and not is_contraction_body(consumer.body)
    return (once and users == 1) or (is_cheap(producer.body) and size * len(reads) * users <= 24)


def _is_injective_read(x: Load, axes: Sequence[Axis]) -> bool:
    """Whether no two points of the axes are seen to read the same element, as in padding: every axis moves the load
    along a dimension that no other axis moves it along. Places that data chooses may be the same."""
    wanted = {a.var for a in axes if not is_one(a.extent)}
    moving: set[Var] = set()
    for i in x.indices:
        own = wanted & free_vars(i)
        if (
            loads(i)
            or len(own) > 1
            or any(m != tuple(own) for m in polynomial(i) if any(own & free_vars(e) for e in m))
        ):
            return False
        moving |= own
    return moving == wanted


def _weight_after_inlining(body: Expr, replaced_weights: Mapping[Load, int]) -> int:
    """The weight of an expression in which some loads are replaced by expressions of these weights."""
    weights: dict[Expr, int] = {**replaced_weights}
    for node in post_order(body):
        if node not in weights:
            weights[node] = 1 + sum(weights[c] for c in node.children())
    return weights[body]


def is_contraction_body(body: Expr) -> bool:
    """Whether a body multiplies two loads of different elements (a contraction), casts aside."""
    if not (isinstance(body, Binary) and body.op == "mul"):
        return False
    a, b = _strip_casts(body.a), _strip_casts(body.b)
    return isinstance(a, Load) and isinstance(b, Load) and a is not b


def _strip_casts(e: Expr) -> Expr:
    return _strip_casts(e.a) if isinstance(e, Cast) else e


def is_cheap(body: Expr) -> bool:
    """Whether a body costs a handful of simple instructions and at most one load."""
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
