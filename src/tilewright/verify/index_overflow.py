"""Index overflow: bounds on the magnitude of numbers that are computed from sizes and loop variables.

The index algebra treats these numbers as mathematical integers (`expr/algebra/intervals.py`), generated code computes
them modulo 2**64. A program is rejected where one may leave -2**62..2**62: by the verifier if that does not depend on
sizes, else at every call, which compares the expressions given here. Loaded values and numbers that are converted from
floating point count as 0.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from tilewright.expr.algebra.intervals import MAX_INDEX
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Binary, Const, Expr, Select, Unary, Var, const
from tilewright.expr.operations import maximum
from tilewright.expr.traversal import free_vars, has_loads, post_order
from tilewright.kernel_caches import kernel_cache
from tilewright.loops.ir import Block, For, Func, If
from tilewright.loops.ir import walk as walk_stmt
from tilewright.verify.diagnostics import Diagnostic, text_of

_ARITHMETIC = ("add", "sub", "mul")


def overflow_candidates(func: Func, sizes: Mapping[Var, Expr]) -> tuple[Expr, ...]:
    """Upper bounds on the magnitude of the numbers in a function that may leave -2**62..2**62.

    Args:
        func: the function.
        sizes: expressions that replace its symbols in the result.
    """
    return tuple(dict.fromkeys(e for _, _, e in possible_overflows(func, sizes)))


def possible_overflows(func: Func, sizes: Mapping[Var, Expr]) -> Iterator[tuple[For | Block | If, Expr, Expr]]:
    """The numbers whose magnitude may exceed 2**62 for sizes in the declared ranges.

    Yields:
        The loop, block or branch, the number, and an upper bound on its magnitude: a literal if it does not depend on
        sizes.
    """
    extents: dict[Var, Expr] = {}
    for s, _ in walk_stmt(func.body):
        if isinstance(s, For):
            extents[s.var] = s.extent
        elif isinstance(s, Block):
            extents |= {i.var: i.extent for i in s.iters}
    magnitude = _Magnitude(extents, sizes)
    for s, _ in walk_stmt(func.body):
        if isinstance(s, For | Block | If):
            for e in (e for root in _roots(s) for e in _outermost_arithmetic(root)):
                if magnitude.max_abs(e) > MAX_INDEX:
                    yield s, e, magnitude.max_abs_expr(e)


def _roots(s: For | Block | If) -> Iterator[Expr]:
    if isinstance(s, For | If):
        yield s.extent if isinstance(s, For) else s.condition
        return
    yield s.predicate
    for i in s.iters:
        yield from (i.extent, i.binding)
    for store in (s.body, s.init):
        if store is not None:
            yield from (*store.indices, store.value)


@kernel_cache(maxsize=1 << 13)
def _outermost_arithmetic(root: Expr) -> tuple[Expr, ...]:
    """The outermost sums, differences and products of int64 numbers in an expression."""
    operations = [n for n in post_order(root) if isinstance(n, Binary) and n.op in _ARITHMETIC and n.dtype is int64]
    inner = {c for n in operations for c in n.children()}
    return tuple(n for n in operations if n not in inner)


@dataclass(slots=True)
class _Magnitude:
    """Upper bounds on |e|: as a number for all sizes in the declared ranges, and as an expression over the sizes."""

    extents: Mapping[Var, Expr]
    sizes: Mapping[Var, Expr]
    cache: dict[Expr, float] = field(default_factory=dict[Expr, float])

    def max_abs(self, e: Expr) -> float:
        """An upper bound on |e| for all sizes."""
        if e not in self.cache:
            self.cache[e] = self._compute_max_abs(e)
        return self.cache[e]

    def _compute_max_abs(self, e: Expr) -> float:
        match e:
            case Const(value):
                return abs(value)
            case Var():
                if e in self.extents:
                    return self.max_abs(self.extents[e])
                return inf if e.lo is None or e.hi is None else max(abs(e.lo), abs(e.hi))
            case _ if has_loads(e) and not (isinstance(e, Binary) and e.op in _ARITHMETIC):
                return 0
            case Binary("add" | "sub", a, b):
                return self.max_abs(a) + self.max_abs(b)
            case Binary("mul", a, b):
                return 0 if has_loads(e) else self.max_abs(a) * self.max_abs(b)
            case Binary("mod", _, b):
                return self.max_abs(b)
            case Binary("floordiv", a, Const(value)) if value > 0:
                return self.max_abs(a) // value + 1
            case Binary("floordiv", a, _):
                return self.max_abs(a)
            case Binary("min" | "max", a, b) | Select(_, a, b):
                return max(self.max_abs(a), self.max_abs(b))
            case Unary("neg" | "abs", a):
                return self.max_abs(a)
            case _:
                return 0

    def max_abs_expr(self, e: Expr) -> Expr:
        """An upper bound on |e| over the sizes."""
        match e:
            case Const(value):
                return Const(abs(int(value)), int64)
            case Var():
                return self.max_abs_expr(self.extents[e]) if e in self.extents else self.sizes.get(e, e)
            case _ if has_loads(e) and not (isinstance(e, Binary) and e.op in _ARITHMETIC):
                return const(0)
            case Binary("add" | "sub", a, b):
                return _raw_binary("add", self.max_abs_expr(a), self.max_abs_expr(b))
            case Binary("mul", a, b):
                return const(0) if has_loads(e) else _raw_binary("mul", self.max_abs_expr(a), self.max_abs_expr(b))
            case Binary("mod", _, b):
                return self.max_abs_expr(b)
            case Binary("floordiv", a, b) if not free_vars(b) & self.extents.keys():
                divisor = maximum(substitute(b, self.sizes), 1)
                return _raw_binary("add", Binary("floordiv", self.max_abs_expr(a), divisor), const(1))
            case Binary("floordiv", a, _):
                return self.max_abs_expr(a)
            case Binary("min" | "max", a, b) | Select(_, a, b):
                return _raw_binary("max", self.max_abs_expr(a), self.max_abs_expr(b))
            case Unary("neg" | "abs", a):
                return self.max_abs_expr(a)
            case _:
                return const(0)


def _raw_binary(op: Literal["add", "mul", "max"], a: Expr, b: Expr) -> Expr:
    """An operation without simplification, which could wrap; literals are folded to one of any magnitude."""
    if isinstance(a, Const) and isinstance(b, Const):
        x, y = int(a.value), int(b.value)
        return Const(x + y if op == "add" else x * y if op == "mul" else max(x, y), int64)
    return Binary(op, a, b)


def find_overflows(func: Func) -> Iterator[Diagnostic]:
    """Numbers computed from literals and loop variables that may exceed 2**62."""
    for s, e, limit in possible_overflows(func, {}):
        if isinstance(limit, Const):
            what = (
                f"{e} may reach {limit.value}, but numbers computed from sizes and loop variables must stay below 2^62"
            )
            hint = "if it is meant to wrap, compute it in uint64"
            yield Diagnostic(_shown_place(s), what, text_of(s), hint)


def _shown_place(s: For | Block | If) -> str:
    match s:
        case Block():
            return f"block {s.name!r}"
        case For():
            return f"loop {s.var.name!r}"
        case If():
            return "a branch"
