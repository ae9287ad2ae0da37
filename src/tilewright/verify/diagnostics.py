"""Diagnostic: one problem that the verifier reports."""

from dataclasses import dataclass

from tilewright.expr.nodes import Buffer
from tilewright.loops.ir import For, Stmt
from tilewright.loops.printer import show_buffer, show_loop, show_stmt


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem in a function.

    Attributes:
        where: the place, for example `block 'C'`.
        what: what is wrong.
        snippet: the offending buffer, loops or block as text.
        hint: what to do about it.
        shared_buffer: for a write race, the buffer whose elements several iterations may write.
    """

    where: str
    what: str
    snippet: str = ""
    hint: str = ""
    shared_buffer: Buffer | None = None


def text_of(thing: Buffer | Stmt) -> str:
    """A buffer, the header of a loop, or a block as the snippet of a diagnostic."""
    if isinstance(thing, Buffer):
        return show_buffer(thing)
    return show_loop(thing) if isinstance(thing, For) else show_stmt(thing)
