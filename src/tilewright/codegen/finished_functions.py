"""Functions of an LLVM module that have been emitted, as text: a module of several programs takes less memory so.

An instruction as an object takes ten times the memory of its text, and a kernel has up to 8 programs.
"""

from collections.abc import Iterable

from llvmlite import ir


class _BodyText:
    """The blocks of a function as text, in the place of its blocks."""

    def __init__(self, text: str) -> None:
        self._text = text

    def descr(self, buf: list[str]) -> None:
        """Appends the text, as a block would."""
        buf.append(self._text)


def finish_functions(functions: Iterable[ir.Function]) -> None:
    """Replaces the bodies of functions by their text; nothing may be added to them after that.

    Args:
        functions: emitted completely; declarations stay.
    """
    for function in functions:
        if not function.blocks or isinstance(function.blocks[0], _BodyText):
            continue
        buf: list[str] = []
        function.descr_body(buf)
        setattr(function, "blocks", [_BodyText("".join(buf))])  # noqa: B010 - the stubs know no other blocks
