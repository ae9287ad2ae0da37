"""Tiling expressions: text, and enumeration against all forests."""

from itertools import product

import pytest
from tests.optimize.chain_space.chain_cases import expression, products

from tilewright.optimize.chains.block_expression import BlockExpression, bind_grid, grid_of, has_many_partial_tiles
from tilewright.optimize.chains.enumerate_expressions import deep_expressions_of, expressions_of
from tilewright.optimize.chains.expression import (
    ChainTiling,
    TiledLoop,
    TilingExpression,
    axes_of,
    expression_text,
    loop_paths,
    nested,
    walk_expression,
    without_loops,
)
from tilewright.optimize.chains.problem import Chain

SMALL = {"m": 32, "k": 32, "n": 32, "h": 32}


@pytest.mark.parametrize("text", ["mhnk", "mn(k,h)", "m(k,n(h,p))", "(k,h)", "mh(nk,p)"])
def test_text_of_an_expression(text: str) -> None:
    assert expression_text(expression(text)) == text


def test_text_of_axes_with_long_names() -> None:
    loops = nested(("rows", "keys"), TiledLoop("depth"), TiledLoop("columns"))
    assert expression_text(loops) == "rows keys (depth,columns)"
    assert expression_text(loops, {"rows": "m", "keys": "n", "depth": "k", "columns": "h"}) == "mn(k,h)"


def test_tile_of_an_axis() -> None:
    assert ChainTiling(expression("mk"), (("m", 64), ("k", 32))).tile("k") == 32


def test_loops_are_removed_with_their_bodies_kept() -> None:
    assert expression_text(without_loops(expression("mn(k,h)"), {"n"})) == "m(k,h)"
    assert expression_text(without_loops(expression("mhnk"), {"h", "k"})) == "mn"


def is_deep(loops: TilingExpression) -> bool:
    """Whether every loop is nested into the one before."""
    return len(loops) <= 1 and all(len(loop.body) <= 1 for loop, _ in walk_expression(loops))


def test_two_products_have_the_expressions_of_the_paper() -> None:
    """Section III-A: 24 deep ones, and the flat ones mn(k,h) and nm(k,h)."""
    expressions = expressions_of(products(SMALL))
    assert len(set(expressions)) == len(expressions) == 26
    assert sorted(expression_text(e) for e in expressions if not is_deep(e)) == ["mn(k,h)", "nm(k,h)"]
    assert set(deep_expressions_of(products(SMALL))) == {e for e in expressions if is_deep(e)}


def _all_forests(chain: Chain) -> int:
    """The number of forests over a chain's axes in which the axes of a statement lie on one path, by trying every
    parent of every axis."""
    axes = chain.loop_axes
    count = 0
    for parents in product((None, *axes), repeat=len(axes)):
        parent = dict(zip(axes, parents, strict=True))
        ancestors = {a: _ancestors(a, parent) for a in axes}
        if any(a in ancestors[a] for a in axes):
            continue
        pairs = ((a, b) for s in chain.statements for a in s.axes for b in s.axes if a < b)
        count += all(a in ancestors[b] or b in ancestors[a] for a, b in pairs)
    return count


def _ancestors(axis: str, parent: dict[str, str | None]) -> list[str]:
    result: list[str] = []
    while (above := parent[axis]) is not None and above not in result:
        result.append(above)
        axis = above
    return result


@pytest.mark.parametrize("names", ["mknh", "mknhp"])
def test_expressions_are_all_forests(names: str) -> None:
    chain = products(dict.fromkeys(names, 32))
    expressions = expressions_of(chain)
    assert len(set(expressions)) == len(expressions) == _all_forests(chain)
    assert all(sorted(axes_of(e)) == sorted(names) for e in expressions)


def test_axes_of_one_tile_have_no_loop() -> None:
    chain = products({"m": 32, "k": 16, "n": 32, "h": 32})
    assert {tuple(sorted(axes_of(e))) for e in expressions_of(chain)} == {("h", "m", "n")}


def test_spatial_loops_are_bound_to_the_grid() -> None:
    """Section III-C, rule 1: mhnk and mnkh are the same for a block."""
    chain = products(SMALL)
    assert bind_grid(chain, expression("mhnk")) == bind_grid(chain, expression("mnkh"))
    assert bind_grid(chain, expression("mhnk")) == BlockExpression(("m", "h"), expression("nk"))
    assert bind_grid(chain, expression("nm(k,h)")) == BlockExpression(("m",), expression("n(k,h)"))
    assert len({bind_grid(chain, e) for e in expressions_of(chain)}) == 3


def test_the_grid_of_an_expression() -> None:
    chain = products(SMALL)
    assert grid_of(chain, expression("mhnk")) == ("m", "h")
    assert grid_of(chain, expression("mn(k,h)")) == ("m",)
    assert grid_of(chain, expression("nmk")) == ()


def test_sums_around_the_tiles_of_an_intermediate_keep_many_of_them() -> None:
    """Section III-C, rule 2 and Fig. 6: kn, not nk."""
    chain = products(SMALL)
    assert has_many_partial_tiles(chain, expression("kn"))
    assert not has_many_partial_tiles(chain, expression("nk"))
    assert not has_many_partial_tiles(chain, expression("n(k,h)"))


def test_paths_lead_from_the_outermost_loop() -> None:
    assert loop_paths(expression("mn(k,h)")) == {
        "m": ("m",),
        "n": ("m", "n"),
        "k": ("m", "n", "k"),
        "h": ("m", "n", "h"),
    }
