"""Sizes in Python and JSON: their canonical form and limits."""

from ast import literal_eval
from collections.abc import Mapping
from typing import SupportsIndex, cast

from tilewright.errors import ParseError
from tilewright.expr.dtype import int64
from tilewright.expr.lexer import tokenize
from tilewright.expr.nodes import Binary, Const, Expr, Var
from tilewright.expr.parser import parse_expr
from tilewright.expr.traversal import loads, post_order

Size = int | Expr
"""A size: a Python integer, or an expression over the symbols of dimensions."""

MAX_TEXT = 4096
"""Characters of a name or an expression."""

MAX_INTEGER = 1 << 48
"""Largest integer; sizes, their products and sums stay far below the end of int64."""


class WrongSizeError(Exception):
    """A value is not a size; the text says what was expected."""


def check_size(value: object) -> Size:
    """A size in canonical form: integers, also NumPy's and literals, as `int`, everything else as an int64 expression.

    Raises:
        WrongSizeError: it is neither, is too large, loads data or divides by 0.
    """
    if isinstance(value, Expr):
        if value.dtype != int64 or loads(value):
            raise WrongSizeError("an integer or an int64 expression without loads")
        if any(isinstance(e, Binary) and e.op in ("floordiv", "mod") and _is_zero(e.b) for e in post_order(value)):
            raise WrongSizeError("an expression that does not divide by 0")
        if not isinstance(value, Const):
            return value
        value = value.value
    if isinstance(value, (bool, float)) or not hasattr(value, "__index__"):
        raise WrongSizeError("an integer or an expression")
    integer = cast(SupportsIndex, value).__index__()
    if abs(integer) > MAX_INTEGER:
        raise WrongSizeError(f"an integer of at most {MAX_INTEGER}")
    return integer


def parse_size(text: str, symbols: Mapping[str, Var] | None = None) -> Expr:
    """The expression of a text, not simplified.

    Args:
        text: an expression as printed.
        symbols: the names that it may refer to; None for any name, as a variable without a range.

    Raises:
        WrongSizeError: it is not an expression, is too long, nested too deeply, has too large a number, or divides by
            0.
    """
    if len(text) > MAX_TEXT:
        raise WrongSizeError(f"an expression of at most {MAX_TEXT} characters")
    try:
        lexed = tokenize(text)
        for t in lexed:
            if t.text.isdecimal() and int(t.text) > MAX_INTEGER:
                raise WrongSizeError(f"an integer of at most {MAX_INTEGER}")
        if symbols is None:
            names = {str(literal_eval(t.text)) if t.kind == "string" else t.text for t in lexed}
            symbols = {name: Var(name) for name in names}
        e = parse_expr(text, symbols, {})
        check_size(e)
        return e
    except (ParseError, RecursionError) as error:
        reason = error.what if isinstance(error, ParseError) else "it is nested too deeply"
        raise WrongSizeError(f"an expression ({reason})") from None


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0
