"""The expression language: sizes, indices and values are all `Expr`.

Nodes are immutable and hash-consed: building an expression that exists already returns the existing object, so
equality is identity and hashing costs nothing. Operators on int64 expressions build simplified index
expressions (`simplify.py`); on other types they build plain nodes.

Semantics, shared by the interpreter, the NumPy evaluation and the generated code:
  * `floordiv` and `mod` round towards minus infinity; `div` is the quotient of floats, and of integers the one
    that is rounded towards zero (as ONNX has it). The operator `/` takes floats only.
  * `Cast` of a float to an integer drops the fraction, saturates at the ends of the type, and maps NaN to 0.
  * `Select` is lazy: the arm not taken is not evaluated, so its loads may lie outside their buffer.
  * Integer arithmetic wraps at the width of its type; float arithmetic rounds to its type. What the index algebra
    may conclude nevertheless is said in `intervals.py`.
  * `min`/`max` give NaN when either operand is NaN.
  * Comparisons and `and`/`or`/`not` have dtype bool.
"""

import weakref
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any, Literal, TypeVar

import numpy as np

from tilewright.errors import DefinitionError
from tilewright.expr.buffer import Buffer
from tilewright.expr.dtype import DType, boolean, int64

T = TypeVar("T")

ArithOp = Literal["add", "sub", "mul", "div", "floordiv", "mod", "fmod", "min", "max", "pow"]
CompareOp = Literal["eq", "ne", "lt", "le", "gt", "ge"]
LogicOp = Literal["and", "or", "xor", "shl", "shr"]
BinaryOp = Literal[ArithOp, CompareOp, LogicOp]
UnaryOp = Literal[
    "neg", "not", "abs", "sign", "sqrt", "rsqrt", "reciprocal", "exp", "log", "tanh", "sigmoid", "erf", "sin", "cos",
    "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "floor", "ceil", "round", "trunc",
    "isnan", "isinf", "softplus", "log1p", "expm1",
]  # fmt: skip

COMPARISONS: frozenset[str] = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
PREDICATES: frozenset[str] = frozenset(("isnan", "isinf", "not"))

_intern_table: "weakref.WeakValueDictionary[tuple[Any, ...], Any]" = weakref.WeakValueDictionary()


def _literal_identity(value: int | float | bool, dtype: DType) -> tuple[Any, ...]:
    """What tells literals apart: 1, 1.0 and True are three, 0.0 and -0.0 two, all NaN one."""
    return type(value), value.hex() if isinstance(value, float) else value, dtype


class _Interned(type):
    """Metaclass that returns the existing node when one with the same fields lives."""

    def __call__(cls: type[T], *args: Any) -> T:
        # Fields left out are None, so that Var("i") and Var("i", None, None) are one.
        left_out = len(cls.__match_args__) - len(args)  # pyright: ignore[reportAttributeAccessIssue]
        if left_out:
            args += (None,) * left_out
        key = (cls, *args) if cls is not Const else (cls, *_literal_identity(*args))
        found = _intern_table.get(key)
        if found is None:
            found = type.__call__(cls, *args)
            # setdefault keeps one winner when two threads build the same node.
            found = _intern_table.setdefault(key, found)
        return found


class Expr(metaclass=_Interned):
    """Base of all expressions.

    Attributes:
        dtype: type of the value.
        weight: number of nodes when shared ones are counted at every place where they stand, as text shows them.
    """

    __slots__ = ("__weakref__", "dtype", "normal_form", "of_data", "weight")
    dtype: DType
    normal_form: Any
    of_data: bool
    weight: int

    def children(self) -> tuple["Expr", ...]:
        """The operands, in order."""
        return ()

    def rebuild(self, children: tuple["Expr", ...]) -> "Expr":
        """The same node over other operands."""
        return self

    # Arithmetic on index expressions simplifies; `simplify.py` installs the real functions to break the cycle.
    def __add__(self, other: "Expr | int | float") -> "Expr":
        return binary("add", self, other)

    def __radd__(self, other: "int | float") -> "Expr":
        return binary("add", other, self)

    def __sub__(self, other: "Expr | int | float") -> "Expr":
        return binary("sub", self, other)

    def __rsub__(self, other: "int | float") -> "Expr":
        return binary("sub", other, self)

    def __mul__(self, other: "Expr | int | float") -> "Expr":
        return binary("mul", self, other)

    def __rmul__(self, other: "int | float") -> "Expr":
        return binary("mul", other, self)

    def __truediv__(self, other: "Expr | int | float") -> "Expr":
        return _true_divide(self, other)

    def __rtruediv__(self, other: "int | float") -> "Expr":
        return _true_divide(other, self)

    def __floordiv__(self, other: "Expr | int") -> "Expr":
        return binary("floordiv", self, other)

    def __rfloordiv__(self, other: int) -> "Expr":
        return binary("floordiv", other, self)

    def __mod__(self, other: "Expr | int") -> "Expr":
        return binary("mod", self, other)

    def __rmod__(self, other: int) -> "Expr":
        return binary("mod", other, self)

    def __pow__(self, other: "Expr | int | float") -> "Expr":
        return binary("pow", self, other)

    def __and__(self, other: "Expr | int") -> "Expr":
        return binary("and", self, other)

    def __or__(self, other: "Expr | int") -> "Expr":
        return binary("or", self, other)

    def __invert__(self) -> "Expr":
        return unary("not", self)

    def __abs__(self) -> "Expr":
        return unary("abs", self)

    def __neg__(self) -> "Expr":
        return binary("sub", 0, self) if self.dtype is int64 else unary("neg", self)

    def __lt__(self, other: "Expr | int | float") -> "Expr":
        return binary("lt", self, other)

    def __le__(self, other: "Expr | int | float") -> "Expr":
        return binary("le", self, other)

    def __gt__(self, other: "Expr | int | float") -> "Expr":
        return binary("gt", self, other)

    def __ge__(self, other: "Expr | int | float") -> "Expr":
        return binary("ge", self, other)

    def equals(self, other: "Expr | int | float") -> "Expr":
        """The comparison `self == other` as an expression (`==` compares the expressions themselves)."""
        return binary("eq", self, other)

    def __bool__(self) -> bool:
        hint = "use select() to choose, `&`, `|` and `~` to combine conditions, prove() to decide"
        raise DefinitionError(f"the truth of expression `{self}` is not known here", hint=hint)

    def __repr__(self) -> str:
        from tilewright.expr.printer import show

        return show(self)


class Const(Expr):
    """A literal. `value` is a Python int, float or bool matching `dtype`."""

    __slots__ = ("value",)
    __match_args__ = ("value", "dtype")
    value: int | float | bool

    def __init__(self, value: int | float | bool, dtype: DType) -> None:
        self.value, self.dtype, self.weight = value, dtype, 1


class Var(Expr):
    """An int64 variable: a loop variable, an iteration variable, or the symbol of a dimension.

    `lo`/`hi` are the inclusive declared range of a symbol; None where nothing is declared (loop variables get
    their range from the loop).
    """

    __slots__ = ("hi", "lo", "name")
    __match_args__ = ("name", "lo", "hi")

    def __init__(self, name: str, lo: int | None = None, hi: int | None = None) -> None:
        self.name, self.lo, self.hi, self.dtype, self.weight = name, lo, hi, int64, 1


class Unary(Expr):
    """An operation on one value."""

    __slots__ = ("a", "op")
    __match_args__ = ("op", "a")
    op: UnaryOp

    def __init__(self, op: UnaryOp, a: Expr) -> None:
        self.op, self.a, self.weight = op, a, a.weight + 1
        self.dtype = boolean if op in PREDICATES else a.dtype

    def children(self) -> tuple[Expr, ...]:
        """The operands, in order."""
        return (self.a,)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        """The same operation on other operands, simplified."""
        return unary(self.op, children[0])


class Binary(Expr):
    """An operation on two values of one type."""

    __slots__ = ("a", "b", "op")
    __match_args__ = ("op", "a", "b")
    op: BinaryOp

    def __init__(self, op: BinaryOp, a: Expr, b: Expr) -> None:
        self.op, self.a, self.b, self.weight = op, a, b, a.weight + b.weight + 1
        self.dtype = boolean if op in COMPARISONS else a.dtype

    def children(self) -> tuple[Expr, ...]:
        """The operands, in order."""
        return (self.a, self.b)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        """The same operation on other operands, simplified."""
        return binary(self.op, children[0], children[1])


class Select(Expr):
    """`a` where `cond` holds, else `b`; lazy."""

    __slots__ = ("a", "b", "cond")
    __match_args__ = ("cond", "a", "b")

    def __init__(self, cond: Expr, a: Expr, b: Expr) -> None:
        self.cond, self.a, self.b, self.dtype = cond, a, b, a.dtype
        self.weight = cond.weight + a.weight + b.weight + 1

    def children(self) -> tuple[Expr, ...]:
        """The operands, in order."""
        return (self.cond, self.a, self.b)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        """The same operation on other operands, simplified."""
        return select(*children)


class Cast(Expr):
    """Conversion to another type (float to integer truncates towards zero; to bool means `!= 0`)."""

    __slots__ = ("a",)
    __match_args__ = ("dtype", "a")

    def __init__(self, dtype: DType, a: Expr) -> None:
        self.a, self.dtype, self.weight = a, dtype, a.weight + 1

    def children(self) -> tuple[Expr, ...]:
        """The operands, in order."""
        return (self.a,)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        """The same operation on other operands, simplified."""
        return cast(self.dtype, children[0])


class Load(Expr):
    """The element of `buffer` at `indices` (int64, one per dimension)."""

    __slots__ = ("buffer", "indices")
    __match_args__ = ("buffer", "indices")

    def __init__(self, buffer: Buffer, indices: tuple[Expr, ...]) -> None:
        self.buffer, self.indices, self.dtype = buffer, indices, buffer.dtype
        self.weight = sum([i.weight for i in indices], 1)

    def children(self) -> tuple[Expr, ...]:
        """The operands, in order."""
        return self.indices

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        """The same operation on other operands, simplified."""
        return Load(self.buffer, children)


_MAX_CACHED_INT = 4096
_cached_ints: "dict[int, Const]" = {}
"""The integers of this size that were used: indices are made of them."""


def const(value: int | float | bool, dtype: DType = int64) -> Const:
    """A literal of the given type; the value is converted to it (wrapping or rounding as NumPy does)."""
    if dtype is int64 and type(value) is int and -_MAX_CACHED_INT <= value <= _MAX_CACHED_INT:
        known = _cached_ints.get(value)
        if known is None:
            known = _cached_ints[value] = Const(value, int64)
        return known
    if dtype.kind == "b":
        return Const(bool(value), dtype)
    if dtype.is_int:
        whole = int(value) & ((1 << dtype.bits) - 1)
        if dtype.kind == "i" and whole >> (dtype.bits - 1):
            whole -= 1 << dtype.bits
        return Const(whole, dtype)
    with np.errstate(over="ignore"):
        return Const(float(dtype.numpy.type(value)), dtype)


def as_expr(value: "Expr | int | float | bool", like: DType = int64) -> Expr:
    """`value` itself, or the literal of type `like`."""
    return value if isinstance(value, Expr) else const(value, like)


def _coerce_operands(a: "Expr | int | float", b: "Expr | int | float") -> tuple[Expr, Expr]:
    if isinstance(a, Expr):
        return a, _coerce(b, a.dtype)
    if isinstance(b, Expr):
        return _coerce(a, b.dtype), b
    return as_expr(a), as_expr(b)


def _coerce(value: "Expr | int | float", like: DType) -> Expr:
    """`value` itself, or the literal that stands beside an expression of type `like`; no fraction is dropped."""
    if isinstance(value, Expr):
        return value
    if not isinstance(value, int):
        if not isinstance(value, (float, np.generic)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"expected an expression or a number, got {type(value).__name__} `{value}`")
        if not like.is_float and not float(value).is_integer():
            raise DefinitionError(f"{value} can't stand beside a value of type {like}", hint="cast the value first")
    return const(value, like)


@cache
def _simplify() -> ModuleType:
    """The module of smart constructors, which imports this one."""
    from tilewright.expr.algebra import simplify

    return simplify


def binary(op: BinaryOp, a: "Expr | int | float", b: "Expr | int | float") -> Expr:
    """The operation on two values, simplified; a Python number takes the other operand's type.

    Raises:
        DefinitionError: the operands' types differ.
    """
    if isinstance(a, Expr) and isinstance(b, Expr):
        left, right = a, b
    else:
        left, right = _coerce_operands(a, b)
    if left.dtype is not right.dtype and left.dtype != right.dtype:
        what = f"operands of {op!r} have types {left.dtype} and {right.dtype}"
        raise DefinitionError(what, hint="cast one of them")
    return _simplify().make_binary(op, left, right)


def _true_divide(a: "Expr | int | float", b: "Expr | int | float") -> Expr:
    left, right = _coerce_operands(a, b)
    if not left.dtype.is_float:
        hint = "write // to round down, or cast to a float first"
        raise DefinitionError(f"`/` of {left.dtype} values: their quotient is no {left.dtype}", hint=hint)
    return binary("div", left, right)


def unary(op: UnaryOp, a: Expr) -> Expr:
    """The operation on one value, folded where the operand is a literal."""
    return _simplify().make_unary(op, a)


def select(cond: Expr, a: Expr, b: "Expr | int | float") -> Expr:
    """`a` where `cond` holds, else `b` (lazy); folded where the condition is known.

    Raises:
        DefinitionError: `cond` is not bool, or the arms' types differ.
    """
    other = _coerce(b, a.dtype)
    if cond.dtype != boolean or other.dtype != a.dtype:
        raise DefinitionError(f"select needs bool and equal types, got {cond.dtype}, {a.dtype}, {other.dtype}")
    if isinstance(cond, Const):
        return a if cond.value else other
    return a if a is other else Select(cond, a, other)


def cast(dtype: DType, a: Expr) -> Expr:
    """`a` converted to `dtype`; folded where it is a literal or already has the type."""
    return _simplify().make_cast(dtype, a)


def minimum(a: "Expr | int", b: "Expr | int") -> Expr:
    """The smaller of two values."""
    return binary("min", a, b)


def maximum(a: "Expr | int", b: "Expr | int") -> Expr:
    """The larger of two values."""
    return binary("max", a, b)


def ceildiv(a: "Expr | int", b: "Expr | int") -> Expr:
    """The quotient of int64 expressions rounded up (b > 0)."""
    top, bottom = _coerce_operands(a, b)
    return (top + bottom - 1) // bottom


TRUE = Const(True, boolean)
FALSE = Const(False, boolean)


def conjunction(*conditions: Expr) -> Expr:
    """The conjunction of bool expressions (True when there are none)."""
    result: Expr = TRUE
    for c in conditions:
        result = binary("and", result, c)
    return result


def conjuncts(condition: Expr) -> tuple[Expr, ...]:
    """The conditions whose conjunction `condition` is; none when it is True."""
    if condition is TRUE:
        return ()
    if isinstance(condition, Binary) and condition.op == "and":
        return conjuncts(condition.a) + conjuncts(condition.b)
    return (condition,)


def post_order(e: Expr) -> Iterator[Expr]:
    """Every distinct node of `e`, operands before users."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(e, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((c, False) for c in reversed(node.children()))


def free_vars(e: Expr) -> frozenset[Var]:
    """The variables that occur in `e` (not those in the shapes of its buffers)."""
    if isinstance(e, Var):  # a value that holds its own key would live forever
        return frozenset((e,))
    known = _free_vars.get(e)
    if known is None:
        known = _free_vars[e] = frozenset(n for n in post_order(e) if isinstance(n, Var))
    return known


_free_vars: "weakref.WeakKeyDictionary[Expr, frozenset[Var]]" = weakref.WeakKeyDictionary()
_loads: "weakref.WeakKeyDictionary[Expr, tuple[Load, ...]]" = weakref.WeakKeyDictionary()


_MAX_RECURSIVE_SIZE = 256


def has_loads(e: Expr) -> bool:
    """Whether there is a load in `e`, so that its value depends on data."""
    known: bool | None = getattr(e, "of_data", None)
    if (
        known is None and e.weight > _MAX_RECURSIVE_SIZE
    ):  # from the leaves up, as a function that calls itself has no such depth
        for n in post_order(e):
            n.of_data = isinstance(n, Load) or any(c.of_data for c in n.children())
        return e.of_data
    if known is None:
        known = e.of_data = isinstance(e, Load) or any(has_loads(c) for c in e.children())
    return known


def loads(e: Expr) -> tuple[Load, ...]:
    """The distinct loads in `e`, inner ones first."""
    known = _loads.get(e)
    if known is None:
        known = tuple(n for n in post_order(e) if isinstance(n, Load))
        if not isinstance(e, Load):  # a value that holds its own key would live forever
            _loads[e] = known
    return known
