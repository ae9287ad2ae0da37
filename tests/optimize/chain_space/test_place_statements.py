"""Placement of loads, computations and stores: the paper's figures, and orders that do not exist."""

import pytest
from tests.optimize.chain_space.chain_cases import expression, products

from tilewright.optimize.chains.place_statements import dependence_graph, order_problem, place_statements, placed_text

CHAIN = products({"m": 32, "k": 32, "n": 32, "h": 32})

PLACED = {
    # Fig. 4(a): the store of E is in loop h, not in n, which does not index it
    ("mhnk", ""): "mh(n(k(L_A,L_B,C_C),L_D,C_E),S_E)",
    # Fig. 4(b): k has one iteration, so that A is loaded once per m
    ("mhnk", "k"): "m(L_A,h(n(L_B,C_C,L_D,C_E),S_E))",
    ("mhnk", "nk"): "L_B,m(L_A,C_C,h(L_D,C_E,S_E))",
    ("mhnk", "mhnk"): "L_A,L_B,C_C,L_D,C_E,S_E",
    # the sum along n is finished after n: all tiles along h are kept, and stored then
    ("mn(k,h)", ""): "m(n(k(L_A,L_B,C_C),h(L_D,C_E)),S_E)",
    ("mn(k,h)", "n"): "m(k(L_A,L_B,C_C),h(L_D,C_E,S_E))",
    ("mn(k,h)", "k"): "m(L_A,n(L_B,C_C,h(L_D,C_E)),S_E)",
    ("mn(k,h)", "kh"): "m(L_A,n(L_B,C_C,L_D,C_E),S_E)",
}


@pytest.mark.parametrize(("text", "dead"), PLACED)
def test_statements_of_two_products(text: str, dead: str) -> None:
    assert placed_text(place_statements(CHAIN, expression(text), dead)) == PLACED[text, dead]


def test_statements_of_three_products() -> None:
    chain = products({"m": 32, "k": 32, "n": 32, "h": 32, "p": 32})
    deep = placed_text(place_statements(chain, expression("mphnk")))
    assert deep == "mp(h(n(k(L_A,L_B,C_C),L_D,C_E),L_F,C_G),S_G)"
    flat = placed_text(place_statements(chain, expression("mh(nk,p)")))
    assert flat == "m(h(n(k(L_A,L_B,C_C),L_D,C_E),p(L_F,C_G)),S_G)"


def test_a_dead_loop_has_no_edges() -> None:
    scopes = {str(p): sorted(x) for p, x in dependence_graph(CHAIN, "k").scopes}
    assert scopes["L_A"] == ["m"]
    assert scopes["L_B"] == ["n"]
    assert scopes["C_C"] == ["m", "n"]
    assert scopes["S_E"] == ["h", "m"]


def test_order_edges_lead_from_operands_to_results() -> None:
    order = {(str(a), str(b)) for a, b in dependence_graph(CHAIN).order}
    assert order == {("L_A", "C_C"), ("L_B", "C_C"), ("C_C", "C_E"), ("L_D", "C_E"), ("C_E", "S_E")}


def test_a_sum_is_read_outside_of_its_loop() -> None:
    assert order_problem(CHAIN, expression("nk")) is None
    assert order_problem(CHAIN, expression("n(k,h)")) is None
    assert order_problem(CHAIN, expression("nkh")) == "E reads C inside of the loop over k, which sums it up"
    assert order_problem(CHAIN, expression("kn")) == "E reads C inside of the loop over k, which sums it up"
