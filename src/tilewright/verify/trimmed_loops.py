"""Loops that end earlier in some iterations of those around them, as loops of one length with predicates.

A loop over `min(end, 4)` tiles, where `end` depends on the loops around it, executes what one over 4 tiles executes
whose blocks have the predicate that the tile is below `end`. The verifier's other checks see the latter: it undoes what
`lower/trim_loops.py` did.
"""

from dataclasses import replace

from tilewright.expr.nodes import Binary, Const, Expr, Var
from tilewright.expr.operations import conjunction
from tilewright.expr.traversal import free_vars
from tilewright.loops.ir import Block, For, Func, If, Seq, Stmt, map_children


def with_whole_loops(func: Func) -> Func:
    """The function whose loops are as long in all iterations of those around them, with predicates instead."""
    body = _with_whole_loops(func.body, frozenset())
    return func if body is func.body else func.with_body(body)


def _with_whole_loops(s: Stmt, outer: frozenset[Var]) -> Stmt:
    match s:
        case Block():
            return s
        case Seq() | If():
            return map_children(s, lambda c: _with_whole_loops(c, outer))
        case For():
            body = _with_whole_loops(s.body, outer | {s.var})
            match s.extent:
                case Binary("min", end, Const() as size) if free_vars(end) & outer:
                    return replace(s, extent=size, body=under_condition(body, s.var < end))
                case _:
                    return s if body is s.body else replace(s, body=body)


def under_condition(s: Stmt, condition: Expr) -> Stmt:
    """A statement whose blocks are executed under a condition as well."""
    match s:
        case Block():
            return replace(s, predicate=conjunction(s.predicate, condition))
        case Seq() | If():
            return map_children(s, lambda c: under_condition(c, condition))
        case For():
            return replace(s, body=under_condition(s.body, condition))
