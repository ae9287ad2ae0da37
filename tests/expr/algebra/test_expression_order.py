"""The order of expressions: by structure, and by names between expressions of one structure only."""

from itertools import permutations

import pytest

from tilewright.expr.algebra.expression_order import order_key
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.dtype import float32, int32
from tilewright.expr.nodes import Buffer, Const, Expr, Load, Symbol, Var, const
from tilewright.expr.operations import cast, select
from tilewright.expr.traversal import free_vars

ROW, COL, N = Var("i"), Var("j"), Symbol("N", 1, 64)
TABLE = Buffer("t", (N,), int32)
EXPRESSIONS: list[Expr] = [
    ROW // 4,
    COL // 4,
    ROW // 8,
    ROW % 4,
    N // 4,
    (ROW + 3) // 4,
    ROW * COL // 4,
    select(ROW < COL, ROW, COL),
    cast(float32, ROW),
    cast(int32, ROW),
    Load(TABLE, (ROW,)),
    Load(TABLE, (COL,)),
    Load(TABLE.renamed("u"), (ROW,)),
    ROW,
    COL,
    N,
    const(3),
    const(-3),
    Const(3.0, float32),
    Const(3, int32),
]


def renamed(e: Expr, names: dict[Var, str]) -> Expr:
    return substitute(e, {v: v.renamed(names[v]) for v in free_vars(e)})


def test_different_expressions_have_different_keys() -> None:
    assert len({order_key(e) for e in EXPRESSIONS}) == len(EXPRESSIONS)


@pytest.mark.parametrize("names", list(permutations(("a", "m", "z_very_long"))))
def test_names_decide_only_between_expressions_of_one_structure(names: tuple[str, str, str]) -> None:
    renaming = dict(zip((ROW, COL, N), names, strict=True))
    for a in EXPRESSIONS:
        for b in EXPRESSIONS:
            if order_key(a)[:2] != order_key(b)[:2]:
                other_a, other_b = order_key(renamed(a, renaming)), order_key(renamed(b, renaming))
                assert (order_key(a) < order_key(b)) == (other_a < other_b), (a, b)


def test_larger_expressions_come_first_and_integers_are_ordered_by_value() -> None:
    ordered = [(ROW + COL) // 2, ROW // 2, ROW // 10, Const(-3, int32), Const(3, int32), Const(20, int32)]
    shuffled = [ordered[k] for k in (3, 0, 5, 2, 4, 1)]
    assert sorted(shuffled, key=order_key) == ordered
