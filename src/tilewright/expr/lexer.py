"""Lexer of the text form of expressions and loops: tokens with line and column; indentation delimits blocks."""

import re
from dataclasses import dataclass

from tilewright.errors import ParseError

_TOKEN = re.compile(
    r"(?P<space>[ \t]+|\#[^\n]*)"
    r"|(?P<newline>\n)"
    r"|(?P<float>\d+\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)"
    r"|(?P<int>\d+)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<string>'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")"
    r"|(?P<op>\.\.|//|==|!=|<=|>=|[-+*/%<>()\[\],;:=])"
)


@dataclass(frozen=True, slots=True)
class Token:
    """A token: kind (name, string, int, float, op, newline, indent, dedent, end), text, line and column from 1."""

    kind: str
    text: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"'{self.text}'" if self.kind not in ("newline", "indent", "dedent", "end") else {
            "newline": "the end of the line", "end": "the end of the text",
            "indent": "deeper indentation", "dedent": "the end of the indented lines"}[self.kind]  # fmt: skip


_SPELLINGS = {"&": "a and b", "|": "a or b", "~": "not(a)", "!": "not(a)"}
"""What to write instead of the logical operators of other languages."""


def parse_error(what: str, token: Token, hint: str = "") -> ParseError:
    """A ParseError at the position of `token`."""
    return ParseError(what, where=f"line {token.line}, column {token.column}", hint=hint)


def tokenize(text: str) -> list[Token]:
    """The tokens of `text`. Lines break freely inside brackets; comments run from `#` to the end of the line.

    Raises:
        ParseError: a character that starts no token, or indentation that matches no line above.
    """
    tokens: list[Token] = []
    indents = [0]
    depth = 0
    line, line_start, position = 1, 0, 0
    at_line_start = True  # of a logical line
    while position < len(text):
        match = _TOKEN.match(text, position)
        column = position - line_start + 1
        if match is None:
            character = text[position]
            hint = f"write `{_SPELLINGS[character]}`" if character in _SPELLINGS else ""
            raise parse_error(f"unexpected character {character!r}", Token("op", character, line, column), hint)
        kind = str(match.lastgroup)
        if kind == "newline":
            if not at_line_start and depth == 0:
                tokens.append(Token("newline", "", line, column))
                at_line_start = True
            line, line_start = line + 1, match.end()
        elif kind != "space":
            if at_line_start:
                _emit_indentation(tokens, indents, Token("indent", "", line, column))
                at_line_start = False
            tokens.append(Token(kind, match.group(), line, column))
            depth += (match.group() in "([") - (match.group() in ")]") if kind == "op" else 0
        position = match.end()
    end = Token("newline", "", line, position - line_start + 1)
    if not at_line_start:
        tokens.append(end)
    tokens.extend(Token("dedent", "", end.line, end.column) for _ in indents[1:])
    tokens.append(Token("end", "", end.line, end.column))
    return tokens


def _emit_indentation(tokens: list[Token], indents: list[int], first: Token) -> None:
    """Opens or closes indentation levels for the line that starts with `first`."""
    width = first.column - 1
    if width > indents[-1]:
        indents.append(width)
        tokens.append(first)
    while width < indents[-1]:
        indents.pop()
        tokens.append(Token("dedent", "", first.line, first.column))
    if width != indents[-1]:
        raise parse_error(f"indentation of {width} columns matches no line above", first)
