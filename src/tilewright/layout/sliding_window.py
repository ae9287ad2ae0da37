"""Sliding windows in overlapped tiles: the tile that holds a whole window of an access V*i + r (ALT, Eq. 1).

A tile of B elements holds q = floor((B - M) / V) + 1 windows of M elements whose beginnings are V apart. Window i = q*t
+ j is in tile t = i // q at offset V*i + r - S*t = (V*q - S)*t + V*j + r, with 0 <= j < q and 0 <= r < M.

Precondition: M <= B and S = V*q. Then the offset is V*j + r <= V*(q - 1) + M - 1 <= B - 1, so it is inside of the tile
for every t. (With S < V*q offsets grow with t until they are past the tile's end; with S > V*q they fall until they are
before its beginning.) Windows that end inside of the data use tiles that exist: with V*i + M <= D, t <= (D - M) / S <=
ceil((D - B) / S), because D - M <= D - B + S - 1.
"""

from math import gcd

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.polynomial import Polynomial, add, expression, multiply, polynomial
from tilewright.expr.algebra.prover import can_prove_non_negative
from tilewright.expr.nodes import Expr, Var, const
from tilewright.expr.traversal import free_vars
from tilewright.layout.primitive import floordiv, is_provably_equal


def find_window_tile(
    x: Expr, tile: Expr, stride: Expr, count: Expr, bounds: Bounds, window: frozenset[Var]
) -> Expr | None:
    """The tile of Eq. 1 for the access `x`, None where its precondition cannot be proved.

    Args:
        x: the access; terms over `window` alone are r, the others V*i.
        tile: B.
        stride: S.
        count: T, the number of tiles.
        bounds: of all variables.
        window: the variables of r.
    """
    outside, inside = _partition_terms(polynomial(x), window)
    if not inside:
        return None
    offset = outside.pop((), 0)
    max_step = gcd(*outside.values()) if outside else 0
    for v in dict.fromkeys((max_step, 1)) if max_step else ():
        i = expression({m: c // v for m, c in outside.items()}) + offset // v
        size = _window_size(add(inside, {(): offset % v} if offset % v else {}), bounds)
        if size is None or not can_prove_non_negative(tile - size, bounds):
            continue
        windows_per_tile = floordiv(tile - size, const(v), bounds) + 1
        t = floordiv(i, windows_per_tile, bounds)
        if (
            is_provably_equal(stride, windows_per_tile * v)
            and can_prove_non_negative(i, bounds)
            and can_prove_non_negative(count - 1 - t, bounds)
        ):
            return t
    return None


def _partition_terms(p: Polynomial, window: frozenset[Var]) -> tuple[Polynomial, Polynomial]:
    """The terms outside and inside of the window."""
    inside = {m: c for m, c in p.items() if any(free_vars(a) & window for a in m)}
    return {m: c for m, c in p.items() if m not in inside}, inside


def _window_size(r: Polynomial, bounds: Bounds) -> Expr | None:
    """M, the largest value of r plus 1; None where r is not a sum of variables from 0 with positive factors."""
    largest: Polynomial = {(): r.get((), 0) + 1}
    for monomial, c in r.items():
        if not monomial:
            continue
        if len(monomial) != 1 or c < 0 or not isinstance(monomial[0], Var) or monomial[0] not in bounds.ranges:
            return None
        low, high = bounds.ranges[monomial[0]]
        if low is not const(0):
            return None
        largest = add(largest, multiply({(): c}, polynomial(high)))
    return expression(largest)
