"""Tokens of the text form of expressions and loops, with their places; indentation opens and closes blocks."""

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
    """A token: its kind (name, string, int, float, op, newline, indent, dedent, end), text and place from 1."""

    kind: str
    text: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"'{self.text}'" if self.kind not in ("newline", "indent", "dedent", "end") else {
            "newline": "the end of the line", "end": "the end of the text",
            "indent": "deeper indentation", "dedent": "the end of the indented lines"}[self.kind]  # fmt: skip


_SPELLINGS = {"&": "a and b", "|": "a or b", "~": "not(a)", "!": "not(a)"}
"""What to write in place of signs that other languages have for logic."""


def parse_error(what: str, token: Token, hint: str = "") -> ParseError:
    """A ParseError at the place of `token`."""
    return ParseError(what, where=f"line {token.line}, column {token.column}", hint=hint)


def tokenize(text: str) -> list[Token]:
    """The tokens of `text`. Lines break freely inside brackets; comments run from `#` to the end of the line.

    Raises:
        ParseError: a character that starts no token, or indentation that matches no line above.
    """
    found: list[Token] = []
    indents = [0]
    depth = 0
    line, start, position = 1, 0, 0
    fresh = True  # at the start of a logical line
    while position < len(text):
        match = _TOKEN.match(text, position)
        column = position - start + 1
        if match is None:
            sign = text[position]
            hint = f"write `{_SPELLINGS[sign]}`" if sign in _SPELLINGS else ""
            raise parse_error(f"unexpected character {sign!r}", Token("op", sign, line, column), hint)
        kind = str(match.lastgroup)
        if kind == "newline":
            if not fresh and depth == 0:
                found.append(Token("newline", "", line, column))
                fresh = True
            line, start = line + 1, match.end()
        elif kind != "space":
            if fresh:
                _emit_indentation(found, indents, Token("indent", "", line, column))
                fresh = False
            found.append(Token(kind, match.group(), line, column))
            depth += (match.group() in "([") - (match.group() in ")]") if kind == "op" else 0
        position = match.end()
    last = Token("newline", "", line, position - start + 1)
    if not fresh:
        found.append(last)
    found.extend(Token("dedent", "", last.line, last.column) for _ in indents[1:])
    found.append(Token("end", "", last.line, last.column))
    return found


def _emit_indentation(found: list[Token], indents: list[int], here: Token) -> None:
    """Opens or closes indentation levels for the line that starts at `here`."""
    width = here.column - 1
    if width > indents[-1]:
        indents.append(width)
        found.append(here)
    while width < indents[-1]:
        indents.pop()
        found.append(Token("dedent", "", here.line, here.column))
    if width != indents[-1]:
        raise parse_error(f"indentation of {width} columns matches no line above", here)
