"""Index checks of innermost loops of routines, hoisted in front of the loop.

A loop of assignments makes the same accesses in every iteration. Where an index is a linear function of the loop's
variable, all of them are in bounds if those of the first and of the last iteration are; else the loop makes a wrong
access, so the routine may fail in front of it. LLVM's own pass does this for induction variables only, and keeps a
second loop (inductive range check elimination). A loop without checks, in which no iteration needs a number of an
earlier one, can be vectorized.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_PURE_FUNCTIONS = frozenset(
    ("abs", "as_integer", "element", "float", "floor", "int", "is_nan", "len", "max", "min", "sqrt")
)
"""Functions of routines whose calls may be vectorized."""
_TOTAL_FUNCTIONS = frozenset(("len", "max", "min"))
"""Functions of integers that are defined for all of them."""

Values = Mapping[str, ast.expr | None]
"""What names stand for in an iteration: an expression in the loop's variable; None where it is not linear."""


@dataclass(frozen=True, slots=True)
class HoistedChecks:
    """What is known about the indices of a loop.

    Attributes:
        checks: a buffer's name and an index that is linear in the loop's variable, over names that the loop keeps.
        unchecked: identities of the index expressions in the loop that `checks` are about.
        is_vectorizable: whether these are all accesses, and no iteration needs a number of an earlier one.
    """

    checks: tuple[tuple[str, ast.expr], ...] = ()
    unchecked: frozenset[int] = frozenset()
    is_vectorizable: bool = False


def hoist_index_checks(variable: str, body: Sequence[ast.stmt]) -> HoistedChecks:
    """The checks of `for variable in range(...): body` that may precede it; none unless the body is assignments."""
    if not all(map(_is_plain_assignment, body)):
        return HoistedChecks()
    assigned = {name for s in body for name in _stored_names(s)}
    scan = _Scan(variable)
    values: dict[str, ast.expr | None] = {**dict.fromkeys(assigned), variable: ast.Name(variable, ast.Load())}
    for s in body:
        scan.statement(s, values)
    subscripts = {id(n.slice) for s in body for n in ast.walk(s) if isinstance(n, ast.Subscript)}
    is_vectorizable = subscripts == scan.unchecked and not _carries_numbers(body, assigned)
    return HoistedChecks(tuple(scan.checks.values()), frozenset(scan.unchecked), is_vectorizable)


@dataclass(slots=True)
class _Scan:
    """Walks the statements of a loop in their order."""

    variable: str
    checks: dict[str, tuple[str, ast.expr]] = field(default_factory=dict[str, tuple[str, ast.expr]])
    unchecked: set[int] = field(default_factory=set[int])

    def statement(self, s: ast.stmt, values: dict[str, ast.expr | None]) -> None:
        """Adds the linear indices of a statement; `values` becomes what names stand for after it."""
        for n in _evaluated(s):
            if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name):
                index = self.linear(n.slice, values)
                if index is not None:
                    self.checks[f"{n.value.id}[{ast.unparse(index)}]"] = n.value.id, index
                    self.unchecked.add(id(n.slice))
        new: dict[str, ast.expr | None] = dict.fromkeys(_stored_names(s))
        match s:
            case ast.Assign([ast.Name(name)], value):
                new[name] = self.linear(value, values)
            case _:
                pass
        values |= new

    def linear(self, e: ast.expr, values: Values) -> ast.expr | None:
        """The expression over names that the loop keeps and, at most linearly, its variable; None if it is not one."""
        match e:
            case ast.Constant(int()):
                return e
            case ast.Name(name):
                return values.get(name, e)
            case ast.UnaryOp(ast.USub(), a):
                inner = self.linear(a, values)
                return None if inner is None else ast.UnaryOp(ast.USub(), inner)
            case ast.BinOp(a, (ast.Add() | ast.Sub() | ast.Mult()) as op, b):
                x, y = self.linear(a, values), self.linear(b, values)
                if x is None or y is None or (isinstance(op, ast.Mult) and self._varies(x) and self._varies(y)):
                    return None
                return ast.BinOp(x, op, y)
            case ast.IfExp(ast.Compare(a, ops, [b]), then, otherwise):
                parts = [self.linear(p, values) for p in (a, b, then, otherwise)]
                left, right, first, second = parts
                if left is None or right is None or first is None or second is None:
                    return None
                test = ast.Compare(left, ops, [right])
                return None if self._varies(test) else ast.IfExp(test, first, second)
            case ast.Call(ast.Name(name) as function, arguments, []) if name in _TOTAL_FUNCTIONS:
                kept = [a if name == "len" else self.linear(a, values) for a in arguments]
                call = ast.Call(function, [a for a in kept if a is not None], [])
                return None if len(call.args) < len(kept) or self._varies(call) else call
            case _:
                return None

    def _varies(self, e: ast.expr) -> bool:
        return any(isinstance(n, ast.Name) and n.id == self.variable for n in ast.walk(e))


def _stored_names(s: ast.stmt) -> Iterator[str]:
    return (n.id for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a statement that are evaluated whatever the data are."""
    yield node
    match node:
        case ast.IfExp(test, _, _):
            yield from _evaluated(test)
        case ast.BoolOp(_, [first, *_]):
            yield from _evaluated(first)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _evaluated(child)


def _is_plain_assignment(s: ast.stmt) -> bool:
    """Whether a statement assigns, and calls no function of the module, which may fail in its own way."""
    calls = (n.func for n in ast.walk(s) if isinstance(n, ast.Call))
    is_pure = all(isinstance(f, ast.Name) and f.id in _PURE_FUNCTIONS for f in calls)
    return isinstance(s, ast.Assign | ast.AugAssign) and is_pure and not _may_index_by_own_names(s)


def _may_index_by_own_names(s: ast.Assign | ast.AugAssign) -> bool:
    """Whether a tuple of names and elements is assigned to: names are stored before later indices are read."""
    targets = [n for n in ast.walk(s) if isinstance(n, ast.Tuple) and isinstance(n.ctx, ast.Store)]
    return any(len({isinstance(e, ast.Name) for e in t.elts}) > 1 for t in targets)


def _carries_numbers(body: Sequence[ast.stmt], assigned: set[str]) -> bool:
    """Whether an assignment reads a name that has its number from an earlier iteration."""
    later = set(assigned)
    for s in body:
        reads = {n.id for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        if reads & later or (isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Name)):
            return True
        later -= set(_stored_names(s))
    return False
