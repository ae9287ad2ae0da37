"""Programs with private buffers, and interpreters that run their iterations independently of each other."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.expr.nodes import Var, const
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Block, BlockIter, For, Func, IterKind, LoopKind, Stmt, Store, seq

Array = np.ndarray[Any, Any]


def iterations_of(func: Func, loop: str, kind: LoopKind) -> Func:
    """The function with a loop of another kind."""
    return func.with_body(_changed(func.body, loop, lambda x: replace(x, kind=kind)))


def poisoned(func: Func, loop: str) -> Func:
    """The function where every iteration of a loop finds NaN in all internal buffers of type float32."""
    fills: list[Stmt] = []
    for b in func.allocs:
        if b.dtype.is_float:
            axes = [(Var(f"poison_{b.name}_{d}"), n) for d, n in enumerate(b.shape)]
            iter_axes = [(Var(f"v_{v.name}"), v, n) for v, n in axes]
            iters = tuple(BlockIter(w, n, IterKind.SPATIAL, v) for w, v, n in iter_axes)
            store = Store(b, tuple(i.var for i in iters), const(float("nan"), b.dtype))
            nest: Stmt = Block(f"poison_{b.name}", iters, store)
            for v, n in reversed(axes):
                nest = For(v, n, LoopKind.SERIAL, nest)
            fills.append(nest)
    return func.with_body(_changed(func.body, loop, lambda x: replace(x, body=seq(*fills, x.body))))


def _changed(s: Stmt, loop: str, change: Callable[[For], For]) -> Stmt:
    if isinstance(s, For):
        return change(s) if s.var.name == loop else replace(s, body=_changed(s.body, loop, change))
    return s if isinstance(s, Block) else seq(*(_changed(c, loop, change) for c in s.stmts))


def result(func: Func, sizes: dict[str, int], seed: int | None = None) -> Array:
    """What a function with inputs A (float32) and I (int64) computes into U, always on the same data."""
    rng = np.random.default_rng(7)
    arrays: dict[str, Array] = {}
    for p in func.params:
        shape = tuple(int(str(n)) if str(n).isdigit() else sizes[str(n)] for n in p.shape)
        real = p.dtype.is_float
        arrays[p.name] = rng.uniform(1, 2, shape).astype(np.float32) if real else rng.integers(0, 4, shape)
    interpret(func, arrays, sizes, seed=seed)
    return arrays["U"]


def differs(func: Func, loop: str, sizes: dict[str, int]) -> bool:
    """Whether independent iterations would compute something else than iterations in order: shuffled, or each with
    internal buffers of its own."""
    expected = result(iterations_of(func, loop, LoopKind.SERIAL), sizes)
    alone = iterations_of(poisoned(func, loop), loop, LoopKind.PARALLEL)
    return not np.array_equal(expected, result(alone, sizes, seed=3), equal_nan=True)
