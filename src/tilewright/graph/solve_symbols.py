"""Solver for symbols: ranges, equalities and values that follow from a model's constraints.

Two inputs with unnamed dimensions that are added have equal sizes in every run that returns a result, and an image has
to be as large as the windows of its poolings. With the solution in the declaration of the inputs, the binding of
arguments performs the checks, errors name the user's dimension, and all later expressions are simpler.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.errors import Defect, ModelError
from tilewright.expr.algebra.bounds import interval
from tilewright.expr.algebra.polynomial import Monomial, Polynomial, add, expression, polynomial
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Binary, Const, Expr, Symbol, Var, const
from tilewright.expr.traversal import free_vars
from tilewright.graph.ir import Graph, TensorType, Value
from tilewright.graph.program import Constraint

MAX_SIZE = 2**24 - 1
"""Default upper bound of a dimension: exact in float32. Products of such sizes need not fit int64; calls check them."""

_log = logging.getLogger("tilewright.graph")


@dataclass(frozen=True, slots=True)
class SolvedSize:
    """The solution for a size that only the reference evaluator computes.

    Attributes:
        size: the same symbol with a narrower range, or an expression over symbols that are known earlier.
        message: of the constraint from which it follows.
    """

    size: Expr
    message: str


@dataclass(frozen=True, slots=True)
class SolvedSymbols:
    """The solution for the graph's symbols (`inputs`) and for data symbols (`data_sizes`, by name)."""

    inputs: Mapping[Var, Expr]
    data_sizes: Mapping[str, SolvedSize]


def solve_symbols(graph: Graph, constraints: Sequence[Constraint], data_symbols: Sequence[Var] = ()) -> SolvedSymbols:
    """The solution of a graph's constraints: a symbol becomes one with a narrower range, another symbol, or a literal.

    Symbols of data-dependent sizes may also become expressions over symbols that are known earlier. Where the solution
    excludes declared sizes, the logger `tilewright.graph` gets a warning that names the node: calls with such a size
    are refused.

    Args:
        graph: the model.
        constraints: conditions on its symbols and on `data_symbols`.
        data_symbols: symbols of data-dependent sizes, in the order in which a run determines them.

    Raises:
        ModelError: a constraint holds for no size in a symbol's range; lists all such constraints.
    """
    mapping: dict[Var, Expr] = {}
    messages: dict[Var, str] = {}
    problems: list[Defect] = []
    order = (*graph.symbols, *data_symbols)
    names, data_names = [v.name for v in order], [v.name for v in data_symbols]
    for constraint in constraints:
        condition = _normalize_min_max(substitute(constraint.condition, mapping))
        solution: Mapping[Var, Expr] | str = {}
        symbols = free_vars(condition)
        defined = {v for s in order for v in free_vars(substitute(s, mapping))}
        if isinstance(condition, Const):
            solution = {} if condition.value else "holds for no sizes in the declared ranges"
        elif isinstance(condition, Binary) and symbols <= defined:
            solution = _solve_data_symbol(condition, names, data_names) or _solve(condition, graph)
        if isinstance(solution, str):
            problems.append(Defect("shape", "model", f"{constraint.message}: {solution}"))
        else:
            _warn_narrowed({v: e for v, e in solution.items() if v.name not in data_names}, constraint, graph)
            changed = {**{v: substitute(e, solution) for v, e in mapping.items()}, **solution}
            messages |= {v: constraint.message for v, e in changed.items() if e is not mapping.get(v)}
            mapping = changed
    if problems:
        raise ModelError(problems)
    settled = {v.name: SolvedSize(e, messages[v]) for v, e in mapping.items() if v in data_symbols}
    return SolvedSymbols({v: e for v, e in mapping.items() if v in graph.symbols}, settled)


def _solve_data_symbol(c: Binary, order: Sequence[str], data_symbols: Collection[str]) -> Mapping[Var, Expr]:
    """The value of the last-determined symbol of an equation, if it is a data symbol and its value cannot be negative.

    Args:
        c: the condition.
        order: names of all symbols in the order in which a run determines them.
        data_symbols: names of the symbols of data-dependent sizes.
    """
    used = free_vars(c)
    if c.op != "eq" or c.a.dtype.name != "int64" or not any(v.name in data_symbols for v in used):
        return {}
    last = max(used, key=lambda v: order.index(v.name))
    p = add(polynomial(c.a), polynomial(c.b), -1)
    k = p.pop((last,), 0)
    rest = expression({monomial: -k * c for monomial, c in p.items()})
    lower_bound = interval(rest)[0]
    if abs(k) != 1 or last in free_vars(rest) or isinstance(rest, Const) or lower_bound is None or lower_bound < 0:
        return {}
    return {last: rest}


def _warn_narrowed(solution: Mapping[Var, Expr], constraint: Constraint, graph: Graph) -> None:
    """Logs which declared sizes a constraint excludes; a range without an upper end means any size that the model
    allows."""
    for v, narrowed in solution.items():
        low, high = interval(narrowed)
        if v.hi != MAX_SIZE and (low, high) != (v.lo, v.hi) and isinstance(narrowed, Const | Var):
            what = "%s, so '%s' can only be %s, where %s..%s was declared"
            sizes = low if low == high else f"{low}..{high}"
            _log.warning(what, constraint.message, _display_name(v, graph), sizes, v.lo, v.hi)


def substitute_symbols(graph: Graph, mapping: Mapping[Var, Expr]) -> Graph:
    """The graph with the symbols of its inputs replaced."""
    inputs = tuple(
        Value(v.name, TensorType(v.type.dtype, tuple(substitute(s, mapping) for s in v.type.shape)))
        for v in graph.inputs
    )
    used = [s for v in inputs for s in v.type.shape if isinstance(s, Var)]
    return replace(graph, inputs=inputs, symbols=tuple(dict.fromkeys(used)))


def _normalize_min_max(c: Expr) -> Expr:
    """min(a, b) == b as a >= b, and max(a, b) == b as a <= b."""
    if isinstance(c, Binary) and c.op == "eq":
        for side, other in ((c.a, c.b), (c.b, c.a)):
            if isinstance(side, Binary) and side.op in ("min", "max") and other in (side.a, side.b):
                rest = side.b if other is side.a else side.a
                return other <= rest if side.op == "min" else rest <= other
    return c


def _solve(c: Binary, graph: Graph) -> Mapping[Var, Expr] | str:
    """The symbols' solution of a condition, or the reason why it cannot hold."""
    if c.op == "eq" and isinstance(c.a, Var) and isinstance(c.b, Var):
        first, second = sorted((c.a, c.b), key=lambda v: _position(v, graph))
        return _unify(first, second, graph)
    if c.op not in ("eq", "lt", "le") or c.a.dtype.name != "int64":
        return {}
    difference = _normalized_difference(c)
    left = tuple(free_vars(difference))
    return _narrow(difference, c.op, left[0], graph) if len(left) == 1 else {}


def _position(symbol: Var, graph: Graph) -> int:
    names = [s.name for s in graph.symbols]
    return names.index(symbol.name) if symbol.name in names else len(names)


def _normalized_difference(c: Binary) -> Expr:
    """b - a (minus 1 for `<`, so that the condition is always `>= 0`), divided by positive common factors."""
    p = add(polynomial(c.b), polynomial(c.a), -1)
    if c.op == "lt":
        p = add(p, {(): 1}, -1)
    for atom in dict.fromkeys(a for m in p for a in m):
        low = interval(atom)[0]
        while low is not None and low >= 1 and all(atom in m for m in p):
            p = _divide_by(p, atom)
    return expression(p)


def _divide_by(p: Polynomial, atom: Expr) -> Polynomial:
    result: Polynomial = {}
    for monomial, c in p.items():
        position = monomial.index(atom)
        rest: Monomial = monomial[:position] + monomial[position + 1 :]
        result[rest] = c
    return result


def _has_default_range(v: Var) -> bool:
    """Whether a symbol's range is the default rather than a declared one."""
    return v.hi == MAX_SIZE and v.lo in (0, 1)


def _unify(first: Var, second: Var, graph: Graph) -> Mapping[Var, Expr] | str:
    """One symbol for two: a symbol with a declared range replaces one with a default range."""
    if _has_default_range(first) != _has_default_range(second):
        assumed, declared = (first, second) if _has_default_range(first) else (second, first)
        return {assumed: declared}
    if _has_default_range(first):
        merged = Symbol(first.name, min(first.lo or 0, second.lo or 0), MAX_SIZE)
        return {v: merged for v in (first, second) if v is not merged}
    low = max(first.lo or 0, second.lo or 0)
    ends = [h for h in (first.hi, second.hi) if h is not None]
    high = min(ends) if ends else None
    if high is not None and low > high:
        names = " and ".join(f"'{_display_name(v, graph)}'" for v in (first, second))
        return f"dimensions {names} must be equal, but their ranges have no size in common"
    merged_symbol: Expr = const(low) if low == high else Symbol(first.name, low, high)
    return {v: merged_symbol for v in (first, second) if v is not merged_symbol}


def _display_name(symbol: Var, graph: Graph) -> str:
    return graph.symbol_names.get(symbol.name, symbol.name)


def _narrow(difference: Expr, op: str, symbol: Var, graph: Graph) -> Mapping[Var, Expr] | str:
    """The symbol restricted to the range where difference >= 0 (== 0 for "eq"), if the difference is monotonic in
    it."""
    direction = _monotonicity(difference, symbol)
    if direction is None or symbol.lo is None or symbol.hi is None:
        return {}

    def value(size: int) -> int:
        result = substitute(difference, {symbol: const(size)})
        return int(result.value) * direction if isinstance(result, Const) else 0

    low, high = symbol.lo, symbol.hi
    # `value` is non-decreasing: it is >= 0 from some size on, and <= 0 up to some size.
    if direction > 0 or op == "eq":
        low = _bisect(low, high, lambda n: value(n) >= 0)
    if direction < 0 or op == "eq":
        high = _bisect(symbol.lo, symbol.hi, lambda n: value(n) > 0) - 1
    if low > high:
        return f"dimension '{_display_name(symbol, graph)}' has no such size in its range {symbol.lo}..{symbol.hi}"
    if (low, high) == (symbol.lo, symbol.hi):
        return {}
    return {symbol: const(low) if low == high else Symbol(symbol.name, low, high)}


def _bisect(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first size in low..high from which on `holds`, or high + 1; `holds` is monotonic."""
    high += 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _monotonicity(e: Expr, symbol: Var) -> int | None:
    """1 or -1 where `e` is non-decreasing or non-increasing in the symbol, its only variable; 0 without the symbol,
    else None."""
    if symbol not in free_vars(e):
        return 0
    match e:
        case Var():
            return 1
        case Binary("add" | "min" | "max", a, b):
            return _combine_directions(_monotonicity(a, symbol), _monotonicity(b, symbol))
        case Binary("sub", a, b):
            other = _monotonicity(b, symbol)
            return _combine_directions(_monotonicity(a, symbol), None if other is None else -other)
        case Binary("mul", a, Const(value)):
            inner = _monotonicity(a, symbol)
            return None if inner is None else inner * (1 if value > 0 else -1)
        case Binary("mul", a, b) if (interval(a)[0] or -1) >= 0 and (interval(b)[0] or -1) >= 0:
            both = _combine_directions(_monotonicity(a, symbol), _monotonicity(b, symbol))
            return both if both == 1 else None
        case Binary("floordiv", a, Const(value)) if value > 0:
            return _monotonicity(a, symbol)
        case _:
            return None


def _combine_directions(a: int | None, b: int | None) -> int | None:
    if a is None or b is None or a * b < 0:
        return None
    return a or b
