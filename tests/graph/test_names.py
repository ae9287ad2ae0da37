"""Names of buffers and symbols."""

import re

from hypothesis import given
from hypothesis import strategies as st

from tilewright.expr.nodes import Var
from tilewright.graph.names import Namer, identifier


def test_identifiers():
    assert identifier("/layer1/conv/Conv_output_0") == "layer1_conv_Conv_output_0"
    assert identifier("p2o.DynamicDimension.0") == "p2o_DynamicDimension_0"
    assert identifier("batch") == "batch"


def test_reserved_words_are_avoided():
    assert [identifier(n) for n in ("min", "select", "float32", "for", "i0", "r12")] == [
        "min_", "select_", "float32_", "for_", "i0_", "r12_",
    ]  # fmt: skip


def test_numbered_names_stay_free():
    namer = Namer(frozenset({"conv_1"}))
    assert namer.make_name("conv", reserve_numbered=True) == "conv_v2"
    assert namer.make_name("add_1", reserve_numbered=True) == "add1"
    assert namer.make_name("sum1", reserve_numbered=True) == "sum1"
    assert namer.make_name("plus", reserve_numbered=True) == "plus"
    assert namer.make_name("plus", reserve_numbered=True) == "plus_v2"


def test_input_keeps_its_name_next_to_its_dimensions():
    assert Namer(frozenset({"x_0", "x_2"})).make_name("x") == "x"


@given(st.lists(st.text(max_size=60), max_size=30), st.lists(st.text(max_size=5), max_size=5))
def test_all_names_differ(wishes, symbols):
    taken = frozenset(map(identifier, symbols))
    namer = Namer(taken)
    names = [namer.make_name(w, reserve_numbered=True) for w in wishes]
    assert all(re.fullmatch(r"[A-Za-z_]\w*", n, re.ASCII) for n in names)
    emitted = [f"{n}{suffix}" for n in names for suffix in ("", "_1", "_12")]
    assert len(set(emitted)) == len(emitted)
    assert not taken & set(emitted)
    assert all(Var(n).name == n for n in names)
