"""Constant prepacking: loop nests that read constants alone run at compile time, and their results become weights.

A schedule packs an operand by a loop nest at the start of the function (`schedule.cache.pack`). If the operand is a
constant, that nest leaves the function and its result becomes a parameter. The remaining internal memory becomes
parameters too, which the memory plan places in the workspace.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.expr.computation import Axis, Computation
from tilewright.expr.evaluate import evaluate
from tilewright.expr.nodes import Buffer, Const, Expr, Load, MemoryScope, Var
from tilewright.expr.strided_view import strided_view
from tilewright.expr.traversal import free_vars, post_order
from tilewright.loops.ir import Block, For, Func, If, IterKind, Seq, Stmt, blocks, seq
from tilewright.loops.ir import walk as walk_statements
from tilewright.lower.expose_workspace import expose_workspace

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class PrepackedKernel:
    """A kernel split into what runs at compile time and what runs at every call.

    Attributes:
        func: the function of every call; its parameters are the inputs that it still reads, the prepacked constants,
            the outputs, and the workspace.
        prepacked: the computations of compile time; their outputs are parameters of `func` by name. They read constant
            parameters and each other's results.
        scratch: the parameters of `func` that are workspace.
    """

    func: Func
    prepacked: tuple[Computation, ...]
    scratch: tuple[Buffer, ...]


def prepack_constants(func: Func, constants: frozenset[str]) -> PrepackedKernel:
    """Moves the root-level loop nests that read constants alone out of a function.

    If every nest would move, none does: the function has to write its outputs.

    Args:
        func: a scheduled function.
        constants: names of the parameters whose data is known at compile time.
    """
    nests = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
    memory = {b.name for b in func.allocs if b.scope is MemoryScope.MEMORY}
    available, prepacked, remaining = set(constants), dict[str, Computation](), list[Stmt]()
    for nest in nests:
        computation = _as_computation(nest, available) if _written_buffer(nest) in memory else None
        if computation is None or _count_writers(nests, computation.output.name) != 1:
            remaining.append(nest)
        else:
            prepacked[computation.output.name] = computation
            available.add(computation.output.name)
    if not remaining:
        prepacked, remaining = {}, list(nests)
    body = seq(*remaining)
    accessed = _accessed_buffers(body)
    inputs = [p for p in func.inputs if p.name in accessed]
    packed_inputs = [c.output for c in prepacked.values() if c.output.name in accessed]
    params = (*inputs, *packed_inputs, *func.outputs)
    allocs = tuple(b for b in func.allocs if b.name not in prepacked)
    result = expose_workspace(replace(func, params=params, allocs=allocs, body=body))
    return PrepackedKernel(drop_unused_symbols(result), tuple(prepacked.values()), result.params[len(params) :])


def drop_unused_symbols(func: Func) -> Func:
    """Removes the symbols that a function does not use."""
    used = _used_variables(func)
    return replace(func, symbols=tuple(s for s in func.symbols if s in used))


def evaluate_prepacked(computations: Sequence[Computation], data: Mapping[str, Array]) -> dict[str, Array]:
    """The data of prepacked parameters by name.

    Args:
        computations: those of `PrepackedKernel.prepacked`.
        data: arrays of the constant parameters by name.
    """
    arrays = dict(data)
    for c in computations:
        arrays[c.output.name] = evaluate(c, arrays, {})
    return {c.output.name: arrays[c.output.name] for c in computations}


def packed_view(computation: Computation, data: Mapping[str, Array]) -> Array | None:
    """The view of a constant that a prepacked one is a copy of; None where it is none.

    Args:
        computation: one of `PrepackedKernel.prepacked`.
        data: arrays of the constant parameters by name.
    """
    body = computation.body
    if not isinstance(body, Load) or body.buffer.name not in data or computation.reduce_axes:
        return None
    sizes = [a.extent.value for a in computation.axes if isinstance(a.extent, Const)]
    if len(sizes) != len(computation.axes):
        return None
    array = data[body.buffer.name]
    return strided_view(body, array, [a.var for a in computation.axes], [(0, int(n)) for n in sizes])


def _written_buffer(nest: Stmt) -> str:
    """The name of the buffer that a nest of one block writes; "" for a nest of several blocks."""
    inner = blocks(nest)
    return inner[0].body.buffer.name if len(inner) == 1 else ""


def _count_writers(nests: Sequence[Stmt], name: str) -> int:
    return sum(1 for nest in nests for b in blocks(nest) if b.body.buffer.name == name)


def _as_computation(nest: Stmt, constants: set[str]) -> Computation | None:
    """A nest of one block as a computation of a whole buffer, with literal extents and constant operands; else None."""
    block = blocks(nest)[0]
    axes = {i.var: Axis(i.var, i.extent) for i in block.iters}
    is_spatial = all(i.kind is IterKind.SPATIAL and isinstance(i.extent, Const) for i in block.iters)
    store = block.body
    order = [axes[i] for i in store.indices if isinstance(i, Var) and i in axes]
    writes_whole_buffer = (
        len(order) == len(store.indices) == len(axes) and tuple(a.extent for a in order) == store.buffer.shape
    )
    reads = {n.buffer.name for n in post_order(store.value) if isinstance(n, Load)}
    if (
        not is_spatial
        or not writes_whole_buffer
        or block.init is not None
        or not reads <= constants
        or not free_vars(store.value) <= set(axes)
    ):
        return None
    return Computation(store.buffer, tuple(order), (), store.value)


def _accessed_buffers(body: Stmt) -> set[str]:
    """Names of the buffers that statements read or write."""
    buffers: set[str] = set()
    for s, _ in walk_statements(body):
        buffers |= {n.buffer.name for e in _expressions(s) for n in post_order(e) if isinstance(n, Load)}
        if isinstance(s, Block):
            buffers |= {x.buffer.name for x in (s.body, s.init) if x is not None}
    return buffers


def _expressions(s: Stmt) -> list[Expr]:
    match s:
        case For():
            return [s.extent, *s.prefetches]
        case Block():
            stores = [x for x in (s.body, s.init) if x is not None]
            in_stores = [e for x in stores for e in (*x.indices, x.value)]
            return [s.predicate, *in_stores, *(e for i in s.iters for e in (i.extent, i.binding))]
        case If():
            return [s.condition]
        case Seq():
            return []


def _used_variables(func: Func) -> set[Var]:
    variables: set[Var] = set()
    for s, _ in walk_statements(func.body):
        for e in _expressions(s):
            variables |= free_vars(e)
    for b in (*func.params, *func.allocs):
        for n in b.shape:
            variables |= free_vars(n)
    return variables
