"""What a scheduled kernel computes from constants alone is computed now and shipped as data: packed weights.

A schedule packs an operand by a nest of its own at the start of the function (`schedule.cache.pack`). Where the
operand is a constant that nest leaves the function and its result becomes a parameter. Memory that remains internal
becomes a parameter too, which the memory plan places in the workspace.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.expr.computation import Axis, Computation
from tilewright.expr.evaluate import evaluate
from tilewright.expr.nodes import Buffer, Const, Expr, Load, MemoryScope, Var
from tilewright.expr.traversal import free_vars, post_order
from tilewright.loops.ir import Block, For, Func, IterKind, Seq, Stmt, blocks, seq
from tilewright.loops.ir import walk as walk_statements

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class PrepackedKernel:
    """A kernel without what can be computed at compile time.

    Attributes:
        func: what runs; its parameters are those it still reads, then the packed ones, the output, and scratch memory.
        packed: computations whose outputs are parameters of `func` by name; they read constant parameters and each
            other.
        scratch: parameters of `func` that are workspace.
    """

    func: Func
    prepacked: tuple[Computation, ...]
    scratch: tuple[Buffer, ...]


def prepack_constants(func: Func, constants: frozenset[str]) -> PrepackedKernel:
    """Takes the root-level nests that depend on constants alone out of a function.

    Args:
        func: a scheduled function.
        constants: names of its parameters whose data is known.
    """
    tops = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
    memory = {b.name for b in func.allocs if b.scope is MemoryScope.MEMORY}
    known, packed, rest = set(constants), dict[str, Computation](), list[Stmt]()
    for top in tops:
        found = _as_computation(top, known) if _written_buffer(top) in memory else None
        if found is None or _count_writers(tops, found.output.name) != 1:
            rest.append(top)
        else:
            packed[found.output.name] = found
            known.add(found.output.name)
    if not rest:
        packed, rest = {}, list(tops)
    body = seq(*rest)
    scratch = tuple(b for b in func.allocs if b.name in memory and b.name not in packed)
    kept = tuple(b for b in func.allocs if b.name not in memory)
    used = _accessed_buffers(body)
    inputs = [p for p in func.params[:-1] if p.name in used]
    ready = [c.output for c in packed.values() if c.output.name in used]
    params = (*inputs, *ready, func.params[-1], *scratch)
    result = replace(func, params=params, allocs=kept, body=body)
    return PrepackedKernel(drop_unused_symbols(result), tuple(packed.values()), scratch)


def drop_unused_symbols(func: Func) -> Func:
    """The function without the symbols that it does not use."""
    used = _used_variables(func)
    return replace(func, symbols=tuple(s for s in func.symbols if s in used))


def evaluate_prepacked(computations: Sequence[Computation], data: Mapping[str, Array]) -> dict[str, Array]:
    """The data of packed parameters by name, from that of constant parameters."""
    known = dict(data)
    for c in computations:
        known[c.output.name] = evaluate(c, known, {})
    return {c.output.name: known[c.output.name] for c in computations}


def _written_buffer(top: Stmt) -> str:
    """The buffer that a statement writes with its only block; "" where it has several."""
    inside = blocks(top)
    return inside[0].body.buffer.name if len(inside) == 1 else ""


def _count_writers(tops: Sequence[Stmt], name: str) -> int:
    return sum(1 for top in tops for b in blocks(top) if b.body.buffer.name == name)


def _as_computation(top: Stmt, constants: set[str]) -> Computation | None:
    """A nest as a computation over literal sizes and known buffers, None where it is not one."""
    block = blocks(top)[0]
    axes = {i.var: Axis(i.var, i.extent) for i in block.iters}
    plain = all(i.kind is IterKind.SPATIAL and isinstance(i.extent, Const) for i in block.iters)
    store = block.body
    order = [axes[i] for i in store.indices if isinstance(i, Var) and i in axes]
    whole = len(order) == len(store.indices) == len(axes) and tuple(a.extent for a in order) == store.buffer.shape
    reads = {n.buffer.name for n in post_order(store.value) if isinstance(n, Load)}
    if (
        not plain
        or not whole
        or block.init is not None
        or not reads <= constants
        or not free_vars(store.value) <= set(axes)
    ):
        return None
    return Computation(store.buffer, tuple(order), (), store.value)


def _accessed_buffers(body: Stmt) -> set[str]:
    """Names of the buffers that statements read or write."""
    found: set[str] = set()
    for s, _ in walk_statements(body):
        found |= {n.buffer.name for e in _expressions(s) for n in post_order(e) if isinstance(n, Load)}
        if isinstance(s, Block):
            found |= {x.buffer.name for x in (s.body, s.init) if x is not None}
    return found


def _expressions(s: Stmt) -> list[Expr]:
    match s:
        case For():
            return [s.extent, *s.prefetches]
        case Block():
            stores = [x for x in (s.body, s.init) if x is not None]
            own = [e for x in stores for e in (*x.indices, x.value)]
            return [s.predicate, *own, *(e for i in s.iters for e in (i.extent, i.binding))]
        case Seq():
            return []


def _used_variables(func: Func) -> set[Var]:
    found: set[Var] = set()
    for s, _ in walk_statements(func.body):
        for e in _expressions(s):
            found |= free_vars(e)
    for b in (*func.params, *func.allocs):
        for n in b.shape:
            found |= free_vars(n)
    return found
