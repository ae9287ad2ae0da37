"""Expressions from text: the inverse of `expr/printer.py`.

Nodes are built as written, without simplification, so that a printed expression comes back as the identical
object. `Reader` walks over tokens and is shared with the parser of the loop IR.
"""

from ast import literal_eval
from collections.abc import Mapping
from typing import cast as typed
from typing import get_args

from tilewright.errors import ParseError
from tilewright.expr.buffer import Buffer
from tilewright.expr.dtype import DTYPES, DType, boolean, float32, int64
from tilewright.expr.lexer import Token, error, tokens
from tilewright.expr.nodes import Binary, BinaryOp, Cast, Expr, Load, Select, Unary, UnaryOp, Var, const
from tilewright.expr.printer import COMPARISON_LEVEL, INFIX, RESERVED

_SIGNS: dict[str, tuple[BinaryOp, int]] = {sign: (typed(BinaryOp, op), level) for op, (sign, level) in INFIX.items()}
_CALLED: frozenset[str] = frozenset(("fmod", "min", "max", "pow", "xor", "shl", "shr"))
_UNARY: frozenset[str] = frozenset(get_args(UnaryOp))


class Reader:
    """A position in a list of tokens, with the variables and buffers that names mean."""

    def __init__(self, text: str, variables: Mapping[str, Var], buffers: Mapping[str, Buffer]) -> None:
        self.tokens = tokens(text)
        self.position = 0
        self.variables, self.buffers = dict(variables), dict(buffers)

    @property
    def here(self) -> Token:
        """The next token."""
        return self.tokens[self.position]

    def advance(self) -> Token:
        """Consumes the next token."""
        token = self.here
        self.position += token.kind != "end"
        return token

    def at(self, text: str) -> bool:
        """Whether the next token is this word or sign."""
        return self.here.text == text and self.here.kind in ("op", "name")

    def accept(self, text: str) -> bool:
        """Consumes the next token if it is this word or sign."""
        found = self.at(text)
        self.position += found
        return found

    def expect(self, text: str, after: str = "") -> Token:
        """Consumes this word or sign.

        Raises:
            ParseError: something else stands here.
        """
        if not self.at(text):
            raise self.unexpected(f"'{text}'{f' {after}' if after else ''}")
        return self.advance()

    def expect_kind(self, kind: str, what: str) -> Token:
        """Consumes a token of this kind."""
        if self.here.kind != kind:
            raise self.unexpected(what)
        return self.advance()

    def unexpected(self, wanted: str) -> ParseError:
        """The error that says what was expected here and what stands here instead."""
        return error(f"expected {wanted}, got {self.here}", self.here)

    def name(self, what: str) -> str:
        """A plain or quoted name."""
        token = self.here
        if token.kind == "string":
            self.advance()
            return _text(token)
        if token.kind != "name" or token.text in RESERVED:
            raise self.unexpected(what)
        return self.advance().text

    def dtype(self) -> DType:
        """The name of an element type."""
        token = self.here
        if token.kind != "name" or token.text not in DTYPES:
            raise self.unexpected(f"an element type ({', '.join(DTYPES)})")
        self.advance()
        return DTYPES[token.text]

    def expression(self, level: int = 0) -> Expr:
        """An expression whose operators bind at least as tightly as `level`."""
        left = self._primary()
        while True:
            sign = self.here
            op = _SIGNS.get(sign.text) if sign.kind in ("op", "name") else None
            if op is None or op[1] < level:
                return left
            self.advance()
            right = self.expression(op[1] + 1)
            left = _binary(op[0], left, right, sign)
            following = _SIGNS.get(self.here.text) if self.here.kind == "op" else None
            if op[1] == COMPARISON_LEVEL and following is not None and following[1] == COMPARISON_LEVEL:
                raise error("comparisons do not chain; write `(a < b) == c`", self.here)

    def listed(self, close: str) -> tuple[Expr, ...]:
        """Expressions separated by commas up to `close`, which is consumed."""
        items: list[Expr] = []
        while not self.at(close):
            items.append(self.expression())
            if not self.accept(","):
                break
        self.expect(close)
        return tuple(items)

    def load(self, token: Token, name: str) -> Load:
        """`[i, j]` after the name of a buffer."""
        buffer = self.buffers.get(name)
        if buffer is None:
            raise error(f"unknown buffer {name!r}", token)
        self.expect("[")
        indices = self.listed("]")
        if len(indices) != buffer.rank:
            raise error(f"buffer {name!r} has {buffer.rank} dimensions, got {len(indices)} indices", token)
        return Load(buffer, indices)

    def _primary(self) -> Expr:
        token = self.here
        if token.kind in ("int", "float"):
            return self._number(1)
        if self.accept("-"):
            if self.here.kind not in ("int", "float"):
                raise self.unexpected("a number after '-' (write neg(x) for other operands)")
            return self._number(-1)
        if self.accept("("):
            inner = self.expression()
            self.expect(")")
            return inner
        if token.kind == "name" and token.text in ("True", "False"):
            return const(self.advance().text == "True", boolean)
        quoted = token.kind == "string"
        name = self.name("an expression")
        if self.at("["):
            return self.load(token, name)
        if self.at("(") and not quoted:
            return self._call(token)
        variable = self.variables.get(name)
        if variable is None:
            raise error(f"unknown variable {name!r}", token)
        return variable

    def _number(self, sign: int) -> Expr:
        token = self.advance()
        if token.kind == "int":
            return const(sign * int(token.text), int64)
        return const(sign * float(token.text), float32)

    def _call(self, token: Token) -> Expr:
        self.expect("(")
        op = token.text
        if op in DTYPES:
            return self._typed(DTYPES[op])
        if op == "cast":
            dtype = self.dtype()
            self.expect(",")
            return Cast(dtype, self.listed(")")[0])
        arguments = self.listed(")")
        wanted = 3 if op == "select" else 2 if op in _CALLED else 1 if op in _UNARY else 0
        if not wanted:
            raise error(f"unknown operation {op!r}", token)
        if len(arguments) != wanted:
            raise error(f"{op} takes {wanted} operands, got {len(arguments)}", token)
        if op == "select":
            cond, a, b = arguments
            if cond.dtype != boolean or a.dtype != b.dtype:
                raise error(f"select needs bool and equal types, got {cond.dtype}, {a.dtype}, {b.dtype}", token)
            return Select(cond, a, b)
        if wanted == 2:
            return _binary(typed(BinaryOp, op), arguments[0], arguments[1], token)
        return Unary(typed(UnaryOp, op), arguments[0])

    def _typed(self, dtype: DType) -> Expr:
        """The literal after `int32(`."""
        sign = -1 if self.accept("-") else 1
        token = self.advance()
        if token.kind == "string" and _text(token) in ("nan", "inf", "-inf") and dtype.is_float:
            value: float | int = float(_text(token))
        elif token.kind == "int" or (token.kind == "float" and dtype.is_float):
            value = sign * (float(token.text) if dtype.is_float else int(token.text))
        else:
            raise error(f"expected a literal of type {dtype}, got {token}", token)
        self.expect(")")
        return const(value, dtype)


def _text(token: Token) -> str:
    return str(literal_eval(token.text))


def _binary(op: BinaryOp, a: Expr, b: Expr, token: Token) -> Expr:
    if a.dtype != b.dtype:
        raise error(f"operands of '{token.text}' have types {a.dtype} and {b.dtype}", token)
    return Binary(op, a, b)


def parse_expr(text: str, variables: Mapping[str, Var], buffers: Mapping[str, Buffer]) -> Expr:
    """The expression that `text` shows.

    Args:
        text: as `printer.show` writes it.
        variables: what names mean.
        buffers: what names before brackets mean.

    Raises:
        ParseError: with line, column, what was expected and what stands there.
    """
    reader = Reader(text, variables, buffers)
    result = reader.expression()
    if reader.here.kind == "newline":
        reader.advance()
    if reader.here.kind != "end":
        raise reader.unexpected("an operator or the end of the text")
    return result
