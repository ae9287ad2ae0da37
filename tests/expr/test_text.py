"""Expressions as text: what is printed parses back to the identical object."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expr.strategies import VARIABLES, I, J, N, conditions, indices, selects

from tilewright.errors import ParseError
from tilewright.expr.dtype import DTYPES, DType, boolean, float32, int32, int64
from tilewright.expr.nodes import Binary, Buffer, Cast, Const, Expr, Load, Select, Symbol, Unary, const
from tilewright.expr.parser import parse_expr
from tilewright.expr.printer import show

QUOTED = Symbol("batch size", 1, 9)
BUFFERS = {
    b.name: b
    for b in (
        Buffer("A", (N, const(5)), float32), Buffer("input.1/x", (N,), float32), Buffer("S", (), float32),
        Buffer("Q", (const(3),), int32), Buffer("init", (const(3),), boolean), Buffer("it's", (N,), int64),
    )
}  # fmt: skip
KNOWN = {v.name: v for v in (*VARIABLES, QUOTED)}


def back(text: str) -> Expr:
    return parse_expr(text, KNOWN, BUFFERS)


def literals() -> st.SearchStrategy[Expr]:
    def of(dtype: DType) -> st.SearchStrategy[Expr]:
        if dtype.is_float:
            return st.floats().map(lambda v: const(v, dtype))
        values = st.booleans() if dtype == boolean else st.integers(-(1 << 63), 1 << 63)
        return values.map(lambda v: const(v, dtype))

    return st.sampled_from(list(DTYPES.values())).flatmap(of)


def floats() -> st.SearchStrategy[Expr]:
    leaves = st.one_of(
        st.floats(width=32).map(lambda v: const(v, float32)),
        st.builds(lambda i, j: Load(BUFFERS["A"], (i, j)), indices(3), indices(3)),
        st.builds(lambda i: Load(BUFFERS["input.1/x"], (i,)), indices(3)),
        st.just(Load(BUFFERS["S"], ())),
        st.builds(lambda i: Cast(float32, i), indices(3)),
    )
    infix = st.sampled_from(("add", "sub", "mul", "div", "min", "max", "pow", "fmod"))
    return st.recursive(
        leaves,
        lambda e: st.one_of(
            st.builds(lambda op, a, b: Binary(op, a, b), infix, e, e),
            st.builds(lambda op, a: Unary(op, a), st.sampled_from(("exp", "neg", "rsqrt", "erf")), e),
            st.builds(lambda c, a, b: Select(c, a, b), conditions(3), e, e),
            st.builds(lambda a, b, c, d: Select(Binary("lt", a, b), c, d), e, e, e, e),
        ),
        max_leaves=8,
    )


@given(st.one_of(indices(12), selects(), conditions(), floats(), literals()))
def test_printed_expressions_parse_to_the_same_object(e: Expr) -> None:
    assert back(show(e)) is e


@pytest.mark.parametrize("text", [
    "i + j * 3", "(i + j) * 3", "i - (j - N)", "i - j - N", "i // 4 % 8", "i // (4 % 8)", "-3 + i", "i * (-3)",
    "i - (-3)",
    "0.1", "-0.0", "1e-05", "1e+20", "float32('nan')", "float32('-inf')", "float16(0.5)", "int32(-3)", "uint8(255)",
    "True",
    "(i < j) == (j < N)", "i < j and j < N or i == 0", "i < j and (j < N or i == 0)", "not(i < j)", "S[]",
    "'batch size' + 1",
    "'input.1/x'[i]", "'init'[0]", '"it\'s"[i]', "select(i < j, A[i, 0], 0.0)", "cast(float32, i)", "exp(A[i, j])",
    "max(A[i, j], 0.0)", "xor(Q[0], shl(Q[1], int32(2)))", "pow(A[0, 0], 2.0)", "min(i, max(j, 0))",
])  # fmt: skip
def test_text_of_every_node(text: str) -> None:
    assert show(back(text)) == text


def test_names_are_quoted_only_where_needed() -> None:
    assert show(QUOTED) == "'batch size'"
    assert show(I + J) == "i + j"
    assert show(Const(7, int64)) == "7"


@pytest.mark.parametrize(("text", "message"), [
    ("i +", "line 1, column 4: expected an expression, got the end of the line"),
    ("i j", "line 1, column 3: expected an operator or the end of the text, got 'j'"),
    ("q + 1", "line 1, column 1: unknown variable 'q'"),
    ("1 + B[i]", "line 1, column 5: unknown buffer 'B'"),
    ("A[i]", "line 1, column 1: buffer 'A' has 2 dimensions, got 1 index"),
    ("A[i, j", "line 1, column 7: expected ']', got the end of the line"),
    ("frobnicate(i)", "line 1, column 1: unknown operation 'frobnicate'"),
    ("exp(A[i, j], A[i, j])", "line 1, column 1: exp takes 1 operand, got 2"),
    ("max(i)", "line 1, column 1: max takes 2 operands, got 1"),
    ("i + 1.5", "line 1, column 3: operands of '+' have types int64 and float32"),
    ("select(i, 1, 2)", "line 1, column 1: select needs bool and equal types, got int64, int64, int64"),
    ("0 <= i < N", "line 1, column 8: comparisons do not chain; write `(a < b) == c`"),
    ("int32(1.5)", "line 1, column 7: expected a literal of type int32, got '1.5'"),
    ("cast(float33, i)", "line 1, column 6: expected an element type (float16, "),
    ("-i", "line 1, column 2: expected a number after '-' (write neg(x) for other operands), got 'i'"),
    ("i ? j", "line 1, column 3: unexpected character '?'"),
    ("(i < j) & (j < 3)", "line 1, column 9: unexpected character '&'; write `a and b`"),
    ("(i < j) | (j < 3)", "line 1, column 9: unexpected character '|'; write `a or b`"),
    ("~(i < j)", "line 1, column 1: unexpected character '~'; write `not(a)`"),
    ("and", "line 1, column 1: expected an expression, got 'and'"),
    ("__import__('os')", "line 1, column 12: unknown variable 'os'"),
    ("i.__class__", "line 1, column 2: unexpected character '.'"),
])  # fmt: skip
def test_parse_errors_state_line_and_column(text: str, message: str) -> None:
    with pytest.raises(ParseError) as error:
        back(text)
    assert str(error.value).startswith(f"[parse] {message}")
