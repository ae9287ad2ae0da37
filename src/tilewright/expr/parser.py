"""Parser of expressions: the inverse of `expr/printer.py`.

Nodes are built as written, without simplification, so a printed expression parses to the identical object.
`ExprParser` is shared with the parser of the loop IR.
"""

from ast import literal_eval
from collections.abc import Mapping
from typing import cast as typed
from typing import get_args

from tilewright.errors import ParseError, pluralize
from tilewright.expr.dtype import DTYPES, DType, boolean, float32, int64
from tilewright.expr.lexer import Token, parse_error, tokenize
from tilewright.expr.nodes import Binary, BinaryOp, Buffer, Cast, Expr, Load, Select, Unary, UnaryOp, Var, const
from tilewright.expr.printer import COMPARISON_PRECEDENCE, INFIX, RESERVED_WORDS

_INFIX_OPERATORS: dict[str, tuple[BinaryOp, int]] = {
    sign: (typed(BinaryOp, op), level) for op, (sign, level) in INFIX.items()
}
_CALL_OPERATORS: frozenset[str] = frozenset(("fmod", "min", "max", "pow", "xor", "shl", "shr"))
_UNARY_OPERATORS: frozenset[str] = frozenset(get_args(UnaryOp))


class ExprParser:
    """Recursive-descent parser of expressions over a token list, with the variables and buffers in scope."""

    def __init__(self, text: str, variables: Mapping[str, Var], buffers: Mapping[str, Buffer]) -> None:
        self.tokens = tokenize(text)
        self.position = 0
        self.variables, self.buffers = dict(variables), dict(buffers)

    @property
    def current(self) -> Token:
        """The next token."""
        return self.tokens[self.position]

    def advance(self) -> Token:
        """Consumes the next token."""
        token = self.current
        self.position += token.kind != "end"
        return token

    def is_at(self, text: str) -> bool:
        """Whether the next token is this word or operator."""
        return self.current.text == text and self.current.kind in ("op", "name")

    def accept(self, text: str) -> bool:
        """Consumes the next token if it is this word or operator; returns whether it was."""
        matches = self.is_at(text)
        self.position += matches
        return matches

    def expect(self, text: str, after: str = "") -> Token:
        """Consumes this word or operator.

        Raises:
            ParseError: the next token is another one.
        """
        if not self.is_at(text):
            raise self.unexpected_token(f"'{text}'{f' {after}' if after else ''}")
        return self.advance()

    def expect_kind(self, kind: str, what: str) -> Token:
        """Consumes a token of this kind."""
        if self.current.kind != kind:
            raise self.unexpected_token(what)
        return self.advance()

    def unexpected_token(self, expected: str) -> ParseError:
        """The error for a next token other than the expected one."""
        return parse_error(f"expected {expected}, got {self.current}", self.current)

    def name(self, what: str) -> str:
        """A plain or quoted name."""
        token = self.current
        if token.kind == "string":
            self.advance()
            return _unquote(token)
        if token.kind != "name" or token.text in RESERVED_WORDS:
            raise self.unexpected_token(what)
        return self.advance().text

    def dtype(self) -> DType:
        """The name of an element type."""
        token = self.current
        if token.kind != "name" or token.text not in DTYPES:
            raise self.unexpected_token(f"an element type ({', '.join(DTYPES)})")
        self.advance()
        return DTYPES[token.text]

    def expression(self, level: int = 0) -> Expr:
        """An expression whose operators have at least precedence `level`."""
        left = self._primary()
        while True:
            token = self.current
            operator = _INFIX_OPERATORS.get(token.text) if token.kind in ("op", "name") else None
            if operator is None or operator[1] < level:
                return left
            self.advance()
            right = self.expression(operator[1] + 1)
            left = _build_binary(operator[0], left, right, token)
            following = _INFIX_OPERATORS.get(self.current.text) if self.current.kind == "op" else None
            if operator[1] == COMPARISON_PRECEDENCE and following is not None and following[1] == COMPARISON_PRECEDENCE:
                raise parse_error("comparisons do not chain; write `(a < b) == c`", self.current)

    def expression_list(self, close: str) -> tuple[Expr, ...]:
        """Expressions separated by commas up to `close`, which is consumed."""
        items: list[Expr] = []
        while not self.is_at(close):
            items.append(self.expression())
            if not self.accept(","):
                break
        self.expect(close)
        return tuple(items)

    def load(self, token: Token, name: str) -> Load:
        """`[i, j]` after the name of a buffer."""
        buffer = self.buffers.get(name)
        if buffer is None:
            raise parse_error(f"unknown buffer {name!r}", token)
        self.expect("[")
        indices = self.expression_list("]")
        if len(indices) != buffer.rank:
            dims, given = pluralize(buffer.rank, "dimension"), pluralize(len(indices), "index", "indices")
            raise parse_error(f"buffer {name!r} has {dims}, got {given}", token)
        return Load(buffer, indices)

    def _primary(self) -> Expr:
        token = self.current
        if token.kind in ("int", "float"):
            return self._number(1)
        if self.accept("-"):
            if self.current.kind not in ("int", "float"):
                raise self.unexpected_token("a number after '-' (write neg(x) for other operands)")
            return self._number(-1)
        if self.accept("("):
            inner = self.expression()
            self.expect(")")
            return inner
        if token.kind == "name" and token.text in ("True", "False"):
            return const(self.advance().text == "True", boolean)
        quoted = token.kind == "string"
        name = self.name("an expression")
        if self.is_at("["):
            return self.load(token, name)
        if self.is_at("(") and not quoted:
            return self._call(token)
        variable = self.variables.get(name)
        if variable is None:
            raise parse_error(f"unknown variable {name!r}", token)
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
            return self._typed_literal(DTYPES[op])
        if op == "cast":
            dtype = self.dtype()
            self.expect(",")
            return Cast(dtype, self.expression_list(")")[0])
        arguments = self.expression_list(")")
        arity = 3 if op == "select" else 2 if op in _CALL_OPERATORS else 1 if op in _UNARY_OPERATORS else 0
        if not arity:
            raise parse_error(f"unknown operation {op!r}", token)
        if len(arguments) != arity:
            raise parse_error(f"{op} takes {pluralize(arity, 'operand')}, got {len(arguments)}", token)
        if op == "select":
            cond, a, b = arguments
            if cond.dtype != boolean or a.dtype != b.dtype:
                raise parse_error(f"select needs bool and equal types, got {cond.dtype}, {a.dtype}, {b.dtype}", token)
            return Select(cond, a, b)
        if arity == 2:
            return _build_binary(typed(BinaryOp, op), arguments[0], arguments[1], token)
        return Unary(typed(UnaryOp, op), arguments[0])

    def _typed_literal(self, dtype: DType) -> Expr:
        """The literal after `int32(`."""
        sign = -1 if self.accept("-") else 1
        token = self.advance()
        if token.kind == "string" and _unquote(token) in ("nan", "inf", "-inf") and dtype.is_float:
            value: float | int = float(_unquote(token))
        elif token.kind == "int" or (token.kind == "float" and dtype.is_float):
            value = sign * (float(token.text) if dtype.is_float else int(token.text))
        else:
            raise parse_error(f"expected a literal of type {dtype}, got {token}", token)
        self.expect(")")
        return const(value, dtype)


def _unquote(token: Token) -> str:
    return str(literal_eval(token.text))


def _build_binary(op: BinaryOp, a: Expr, b: Expr, token: Token) -> Expr:
    if a.dtype != b.dtype:
        raise parse_error(f"operands of '{token.text}' have types {a.dtype} and {b.dtype}", token)
    return Binary(op, a, b)


def parse_expr(text: str, variables: Mapping[str, Var], buffers: Mapping[str, Buffer]) -> Expr:
    """Parses an expression.

    Args:
        text: as `printer.show` writes it.
        variables: variables in scope by name.
        buffers: buffers in scope by name.

    Raises:
        ParseError: with line, column, the expected and the actual token.
    """
    reader = ExprParser(text, variables, buffers)
    result = reader.expression()
    if reader.current.kind == "newline":
        reader.advance()
    if reader.current.kind != "end":
        raise reader.unexpected_token("an operator or the end of the text")
    return result
