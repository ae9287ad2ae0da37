"""Interpreter of the loop IR in NumPy: the oracle of every transformation and of generated code.

The semantics are those of scalar execution in loop order, with every value rounded to its type after every operation.
For speed, a perfect nest around one block is executed for batches of points where the result is the same: the block's
value does not depend on what the block itself wrote, or only through `C[..] = op(C[..], value)`, which is accumulated
point by point in loop order. With a seed, concurrent loops run in a shuffled order, so that races change the result;
only the first lane of a horizontal reduction stays first where it runs the init.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import InternalError
from tilewright.expr.nodes import TRUE, Binary, Buffer, Cast, Const, Expr, Load, Select, Unary, Var
from tilewright.expr.numpy_semantics import apply_cast, apply_unary, compute_binary
from tilewright.expr.traversal import free_vars
from tilewright.kernel_caches import kernel_cache
from tilewright.loops.accumulation import match_accumulation, reads_buffer
from tilewright.loops.empty_reductions import initialize_empty_reductions
from tilewright.loops.ir import CONCURRENT, Block, For, Func, If, IterKind, LoopKind, Seq, Stmt, Store, walk

Array = np.ndarray[Any, Any]

_ACCUMULATE: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def interpret(
    func: Func,
    arrays: Mapping[str, Array],
    symbols: Mapping[Var, int] | Mapping[str, int],
    *,
    seed: int | None = None,
    batch_size: int = 1 << 18,
) -> None:
    """Runs a function; outputs are written in place.

    Args:
        func: the function, which need not be verified: its errors are detected at run time.
        arrays: an array of the right shape and dtype for every parameter, by name.
        symbols: a size for every symbol, by variable or name.
        seed: shuffles the iterations of concurrent loops (parallel, on an axis, vectorized, vthread); None runs them
            in order.
        batch_size: points of an iteration space that are executed at once; 1 is scalar execution.

    Raises:
        InternalError: an array is missing or has the wrong shape or type, a variable has no value, an index is out of
            bounds, or a binding leaves its domain; names the block and the buffer.
    """
    sizes = {k if isinstance(k, str) else k.name: int(n) for k, n in symbols.items()}
    env: dict[Var, Any] = {}
    for s in func.symbols:
        if s.name not in sizes:
            raise InternalError(f"symbol {s.name!r} has no value", where=f"func {func.name!r}")
        env[s] = np.int64(sizes[s.name])
    storage = {b.name: _checked_array(b, arrays, env, func) for b in func.params}
    storage.update({b.name: _uninitialized(b, env) for b in func.allocs})
    rng = None if seed is None else np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        _Execution(storage, rng, batch_size).run(initialize_empty_reductions(func).body, env)


def _shape(b: Buffer, env: Mapping[Var, Any]) -> tuple[int, ...]:
    points = _Points(env, {}, f"shape of buffer {b.name!r}")
    return tuple(int(points.value(s)) for s in b.shape)


def _checked_array(b: Buffer, arrays: Mapping[str, Array], env: Mapping[Var, Any], func: Func) -> Array:
    where = f"func {func.name!r}"
    if b.name not in arrays:
        raise InternalError(f"parameter {b.name!r} has no array", where=where)
    array, shape = arrays[b.name], _shape(b, env)
    if array.shape != shape or array.dtype != b.dtype.numpy:
        raise InternalError(
            f"parameter {b.name!r}: expected {b.dtype}{list(shape)}, got {array.dtype}{list(array.shape)}", where=where
        )
    return array.reshape(1) if not shape else array


def _uninitialized(b: Buffer, env: Mapping[Var, Any]) -> Array:
    """Uninitialised memory: filled with NaN or an unlikely number, so that reads before writes are noticed."""
    fill = float("nan") if b.dtype.is_float else (True if b.dtype.kind == "b" else 77)
    return np.full(_shape(b, env) or (1,), fill, b.dtype.numpy)


class _Points:
    """Values of variables at one or many points of an iteration space; evaluates expressions there.

    A value is an array with one element per point, or a NumPy scalar where all points have the same.
    """

    def __init__(self, variables: Mapping[Var, Any], storage: Mapping[str, Array], where: str, count: int = 1) -> None:
        self.variables, self.storage, self.where, self.count = variables, storage, where, count
        self.cache: dict[Expr, Any] = {**variables}

    def subset(self, mask: Any) -> "_Points | None":
        """The points where `mask` holds; these themselves where it holds everywhere, None where it holds nowhere."""
        count = int(np.count_nonzero(mask)) if isinstance(mask, np.ndarray) else self.count * bool(mask)
        if count in (0, self.count):
            return self if count else None
        taken = {v: a[mask] if isinstance(a, np.ndarray) else a for v, a in self.variables.items()}
        return _Points(taken, self.storage, self.where, count)

    def value(self, e: Expr) -> Any:
        """The value of `e`."""
        result = self.cache.get(e)
        if result is None:
            result = self.cache[e] = self._value(e)
        return result

    def _value(self, e: Expr) -> Any:
        match e:  # no attributes in the patterns: they take most of the time of small nests
            case Binary():
                return compute_binary(e.op, self.value(e.a), self.value(e.b))
            case Load():
                return self.storage[e.buffer.name][self.element_index(e.buffer, e.indices)]
            case Const():
                return _literal(e)
            case Unary():
                return apply_unary(e.op, self.value(e.a))
            case Cast():
                return apply_cast(e.dtype, self.value(e.a))[()]
            case Select():
                return self._select(e.cond, e.a, e.b)
            case Var():
                raise InternalError(f"variable {e.name!r} has no value", where=self.where)
            case _:
                raise InternalError(f"cannot evaluate {type(e).__name__}", where=self.where)

    def _select(self, cond: Expr, a: Expr, b: Expr) -> Any:
        test = self.value(cond)
        chosen = self.subset(test)
        if chosen is self or chosen is None:
            return self.value(b if chosen is None else a)
        result = np.empty(self.count, a.dtype.numpy)
        result[test] = chosen.value(a)
        others = self.subset(~test)
        assert others is not None
        result[~test] = others.value(b)
        return result

    def element_index(self, buffer: Buffer, indices: Sequence[Expr]) -> tuple[Any, ...]:
        """The NumPy index of an element at every point.

        Raises:
            InternalError: it is out of bounds, or the buffer is not declared.
        """
        if buffer.name not in self.storage:
            raise InternalError(f"buffer {buffer.name!r} is neither a parameter nor an alloc", where=self.where)
        if not indices:
            return (np.int64(0),)
        at = tuple([self.value(i) for i in indices])
        for axis, (i, n) in enumerate(zip(at, self.storage[buffer.name].shape, strict=True)):
            low, high = _index_range(i)
            if low < 0 or high >= n:
                shown = f"{low}..{high}" if isinstance(i, np.ndarray) else f"{low}"
                raise InternalError(
                    f"index {shown} of buffer {buffer.name!r} leaves axis {axis} of size {n}", where=self.where
                )
        return at


@kernel_cache(maxsize=1 << 12)
def _literal(e: Const) -> Any:
    return np.asarray(e.value).astype(e.dtype.numpy)[()]


def _index_range(value: Any) -> tuple[int, int]:
    """The smallest and the largest of integers."""
    return (np.minimum.reduce(value), np.maximum.reduce(value)) if isinstance(value, np.ndarray) else (value, value)


def _at_every_point(value: Any, count: int) -> Array:
    return value if isinstance(value, np.ndarray) else np.full(count, value, np.asarray(value).dtype)


@dataclass(slots=True)
class _Execution:
    """A running function.

    Attributes:
        storage: the arrays of all buffers, by name.
        rng: shuffles concurrent loops; None: they run in order.
        batch_size: points that are executed at once.
        nest_cache: the perfect nests of loops, by the loop's identity.
        block_cache: whether a block is batchable, and what it accumulates, by the block's identity.
        initializing_lane_cache: results of `_is_initialized_by_first_lane`, by the loop's identity.
    """

    storage: Mapping[str, Array]
    rng: np.random.Generator | None
    batch_size: int
    nest_cache: dict[int, "tuple[tuple[For, ...], Block] | None"] = field(
        default_factory=dict[int, "tuple[tuple[For, ...], Block] | None"]
    )
    block_cache: dict[int, tuple[bool, tuple[str, Expr] | None]] = field(
        default_factory=dict[int, tuple[bool, tuple[str, Expr] | None]]
    )
    initializing_lane_cache: dict[int, bool] = field(default_factory=dict[int, bool])

    def run(self, s: Stmt, env: dict[Var, Any]) -> None:
        """Executes a statement; `env` are the values of the enclosing loops' variables and of symbols."""
        match s:
            case Seq(stmts):
                for child in stmts:
                    self.run(child, env)
            case If(condition, then, otherwise):
                holds = _Points(env, self.storage, "a branch").value(condition)
                self.run(then if holds else otherwise, env)
            case Block():
                self._run_nest((), s, env)
            case For():
                if id(s) not in self.nest_cache:
                    self.nest_cache[id(s)] = _match_perfect_nest(s)
                nest = self.nest_cache[id(s)]
                if nest is not None:
                    self._run_nest(*nest, env)
                    return
                for value in self._iteration_order(s, self._extent(s, env)):
                    self.run(s.body, {**env, s.var: value})

    def _extent(self, loop: For, env: Mapping[Var, Any]) -> int:
        if isinstance(loop.extent, Const):
            return int(loop.extent.value)
        return int(_Points(env, self.storage, f"loop {loop.var.name!r}").value(loop.extent))

    def _iteration_order(self, loop: For, extent: int) -> Array:
        if self.rng is None or loop.kind not in CONCURRENT:
            return np.arange(max(0, extent), dtype=np.int64)
        fixed = min(1, extent) if self._is_initialized_by_first_lane(loop) else 0
        shuffled = self.rng.permutation(max(0, extent - fixed)) + fixed
        return np.append(np.arange(fixed), shuffled).astype(np.int64)

    def _is_initialized_by_first_lane(self, loop: For) -> bool:
        """Whether the first lane of a horizontal reduction runs the init."""
        if id(loop) not in self.initializing_lane_cache:
            blocks = [s for s, _ in walk(loop.body) if isinstance(s, Block) and s.init is not None]
            reduced = [i.binding for b in blocks for i in b.iters if i.kind is IterKind.REDUCE]
            lanes = loop.kind is LoopKind.VECTORIZED
            self.initializing_lane_cache[id(loop)] = lanes and any(loop.var in free_vars(e) for e in reduced)
        return self.initializing_lane_cache[id(loop)]

    def _run_nest(self, loops: tuple[For, ...], block: Block, env: Mapping[Var, Any]) -> None:
        """Executes a rectangular perfect nest around one block, in batches of points."""
        if id(block) not in self.block_cache:
            self.block_cache[id(block)] = _is_batchable(block), match_accumulation(block.body)
        is_batchable, accumulation = self.block_cache[id(block)]
        orders = [self._iteration_order(loop, self._extent(loop, env)) for loop in loops]
        total, step = prod(len(o) for o in orders), self.batch_size if is_batchable else 1
        where = f"block {block.name!r}"
        for start in range(0, total, step):
            count = min(step, total - start)
            variables = {**env, **_values_of_loops(loops, orders, start, count)}
            self._run_block(block, accumulation, _Points(variables, self.storage, where, count))

    def _run_block(self, block: Block, accumulation: tuple[str, Expr] | None, outside: _Points) -> None:
        if block.predicate is not TRUE:
            inside = outside.subset(outside.value(block.predicate))
            if inside is None:
                return
            outside = inside
        variables, first = dict(outside.variables), np.True_
        for i in block.iters:
            value, extent = outside.value(i.binding), int(outside.value(i.extent))
            low, high = _index_range(value)
            if low < 0 or high >= extent:
                raise InternalError(
                    f"binding {low}..{high} of {i.var.name!r} leaves its domain of {extent}", where=outside.where
                )
            variables[i.var] = value
            if i.kind is IterKind.REDUCE:
                first = np.logical_and(first, value == 0)
        points = _Points(variables, self.storage, outside.where, outside.count)
        if accumulation is not None:
            self._accumulate(block, *accumulation, points, first)
            return
        initial = points.subset(first)
        if block.init is not None and initial is not None:
            self._assign(block.init, initial)
        self._assign(block.body, points)

    def _accumulate(self, block: Block, op: str, term: Expr, points: _Points, first: Any) -> None:
        """Runs `C[..] = op(C[..], term)` point by point, each after its init where `first` holds."""
        count, array = points.count, self.storage[block.body.buffer.name]
        indices = points.element_index(block.body.buffer, block.body.indices)
        at = tuple([_at_every_point(i, count) for i in indices])
        value = _at_every_point(points.value(term), count)
        initial = None if block.init is None else points.subset(first)
        if block.init is not None and initial is not None:
            self._assign(block.init, initial)
            # Terms that were accumulated before an element's last initialisation are lost.
            flat = np.ravel_multi_index(at, array.shape)
            flat -= flat.min()
            first, order = _at_every_point(first, count), np.arange(count)
            last = np.full(flat.max() + 1, -1, np.int64)
            np.maximum.at(last, flat[first], order[first])
            keep = order >= last[flat]
            at, value = tuple([i[keep] for i in at]), value[keep]
        _ACCUMULATE[op].at(array, at, value)

    def _assign(self, store: Store, points: _Points) -> None:
        at = points.element_index(store.buffer, store.indices)
        value = points.value(store.value)
        if isinstance(value, np.ndarray) and not any(isinstance(i, np.ndarray) for i in at):
            value = value[-1]  # every point writes the same element
        self.storage[store.buffer.name][at] = value


def _values_of_loops(loops: Sequence[For], orders: Sequence[Array], start: int, count: int) -> dict[Var, Any]:
    """The variables of a nest's loops at `count` points from point `start` on."""
    position: Any = start if count == 1 else np.arange(start, start + count, dtype=np.int64)
    values: dict[Var, Any] = {}
    for loop, order in zip(reversed(loops), reversed(orders), strict=True):
        if len(order) == 1:
            values[loop.var] = order[0]
        else:
            values[loop.var] = order[position % len(order)]
            position //= len(order)
    return values


def _match_perfect_nest(s: For) -> tuple[tuple[For, ...], Block] | None:
    """The loops and the block of a perfect, rectangular nest; None for other loops."""
    loops: list[For] = []
    inner: Stmt = s
    while isinstance(inner, For):
        if free_vars(inner.extent) & {loop.var for loop in loops}:
            return None
        loops.append(inner)
        inner = inner.body
    return (tuple(loops), inner) if isinstance(inner, Block) else None


def _is_batchable(block: Block) -> bool:
    """Whether points can be executed in batches: no point reads what another wrote, except by accumulation."""
    body, init = block.body, block.init
    if reads_buffer(body.value, body.buffer):
        if match_accumulation(body) is None:
            return False
        return init is None or (init.indices == body.indices and not reads_buffer(init.value, body.buffer))
    return init is None
