"""Expression nodes and buffers: sizes, indices and values are all `Expr`.

Nodes are immutable and hash-consed: constructing an existing expression returns the existing object, so equality is
identity and hashing is free. The operators of `Expr` simplify; `operations.py` has the functions behind them, which
`expr/__init__.py` installs here (`install_builders`), because they are built on the nodes.

Semantics, shared by the interpreter, the NumPy evaluation and the generated code:
  * `floordiv` and `mod` round towards minus infinity; `div` divides floats, and integers with rounding towards zero (as
    in ONNX). The operator `/` accepts floats only.
  * `Cast` of a float to an integer truncates, saturates at the ends of the type, and maps NaN to 0.
  * `Select` is lazy: the arm not taken is not evaluated, so its loads may be out of bounds.
  * Integer arithmetic wraps at the width of its type; float arithmetic rounds to its type. `algebra/intervals.py` says
    what the index algebra may conclude in spite of wrapping.
  * `min`/`max` give NaN when either operand is NaN.
  * Comparisons and `and`/`or`/`not` of conditions have dtype bool.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

import numpy as np

from tilewright.errors import DefinitionError
from tilewright.expr.dtype import DType, boolean, int64
from tilewright.expr.interning import Interned, InternedLiteral

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


class _Builders:
    """Functions behind the methods of expressions; `operations.py` is built on the nodes and installs them."""

    binary: "Callable[[BinaryOp, Expr | int | float, Expr | int | float], Expr]"
    unary: "Callable[[UnaryOp, Expr], Expr]"
    divide: "Callable[[Expr | int | float, Expr | int | float], Expr]"
    select: "Callable[[Expr, Expr, Expr], Expr]"
    cast: "Callable[[DType, Expr], Expr]"
    show: "Callable[[Expr], str]"


def install_builders(
    *,
    binary: "Callable[[BinaryOp, Expr | int | float, Expr | int | float], Expr]",
    unary: "Callable[[UnaryOp, Expr], Expr]",
    divide: "Callable[[Expr | int | float, Expr | int | float], Expr]",
    select: "Callable[[Expr, Expr, Expr], Expr]",
    cast: "Callable[[DType, Expr], Expr]",
    show: "Callable[[Expr], str]",
) -> None:
    """Sets the functions behind the operators, `rebuild` and `repr` of expressions."""
    _Builders.binary, _Builders.unary, _Builders.divide = binary, unary, divide
    _Builders.select, _Builders.cast, _Builders.show = select, cast, show


class Expr(metaclass=Interned):
    """Base of all expressions.

    Attributes:
        dtype: type of the value.
        tree_size: number of nodes of the expression as a tree: a shared node counts once per use.
        normal_form, order_key, data_dependent, loads, variables: cached results of the algebra and of walks.
    """

    __slots__ = "__weakref__", "data_dependent", "dtype", "loads", "normal_form", "order_key", "tree_size", "variables"
    dtype: DType
    normal_form: Any
    data_dependent: bool
    loads: "tuple[Load, ...]"
    order_key: Any
    tree_size: int
    variables: "frozenset[Var]"

    def children(self) -> tuple["Expr", ...]:
        """The operands, in order."""
        return ()

    def rebuild(self, children: tuple["Expr", ...]) -> "Expr":
        """The same node over other operands."""
        return self

    def __add__(self, other: "Expr | int | float") -> "Expr":
        return _Builders.binary("add", self, other)

    def __radd__(self, other: "int | float") -> "Expr":
        return _Builders.binary("add", other, self)

    def __sub__(self, other: "Expr | int | float") -> "Expr":
        return _Builders.binary("sub", self, other)

    def __rsub__(self, other: "int | float") -> "Expr":
        return _Builders.binary("sub", other, self)

    def __mul__(self, other: "Expr | int | float") -> "Expr":
        return _Builders.binary("mul", self, other)

    def __rmul__(self, other: "int | float") -> "Expr":
        return _Builders.binary("mul", other, self)

    def __truediv__(self, other: "Expr | int | float") -> "Expr":
        return _Builders.divide(self, other)

    def __rtruediv__(self, other: "int | float") -> "Expr":
        return _Builders.divide(other, self)

    def __floordiv__(self, other: "Expr | int") -> "Expr":
        return _Builders.binary("floordiv", self, other)

    def __rfloordiv__(self, other: int) -> "Expr":
        return _Builders.binary("floordiv", other, self)

    def __mod__(self, other: "Expr | int") -> "Expr":
        return _Builders.binary("mod", self, other)

    def __rmod__(self, other: int) -> "Expr":
        return _Builders.binary("mod", other, self)

    def __pow__(self, other: "Expr | int | float") -> "Expr":
        return _Builders.binary("pow", self, other)

    def __and__(self, other: "Expr | int") -> "Expr":
        return _Builders.binary("and", self, other)

    def __or__(self, other: "Expr | int") -> "Expr":
        return _Builders.binary("or", self, other)

    def __invert__(self) -> "Expr":
        return _Builders.unary("not", self)

    def __abs__(self) -> "Expr":
        return _Builders.unary("abs", self)

    def __neg__(self) -> "Expr":
        return _Builders.binary("sub", 0, self) if self.dtype is int64 else _Builders.unary("neg", self)

    def __lt__(self, other: "Expr | int | float") -> "Expr":
        return _Builders.binary("lt", self, other)

    def __le__(self, other: "Expr | int | float") -> "Expr":
        return _Builders.binary("le", self, other)

    def __gt__(self, other: "Expr | int | float") -> "Expr":
        return _Builders.binary("gt", self, other)

    def __ge__(self, other: "Expr | int | float") -> "Expr":
        return _Builders.binary("ge", self, other)

    def equals(self, other: "Expr | int | float") -> "Expr":
        """The comparison `self == other` as an expression (`==` compares the expressions themselves)."""
        return _Builders.binary("eq", self, other)

    def astype(self, dtype: DType) -> "Expr":
        """The value converted to `dtype`; folded where it is a literal or already has the type."""
        return _Builders.cast(dtype, self)

    def __bool__(self) -> bool:
        hint = "use select() to choose, `&`, `|` and `~` to combine conditions, can_prove() to decide"
        raise DefinitionError(f"the truth value of expression `{self}` is not known here", hint=hint)

    def __repr__(self) -> str:
        return _Builders.show(self)


class Const(Expr, metaclass=InternedLiteral):
    """A literal. `value` is a Python int, float or bool matching `dtype`."""

    __slots__ = ("value",)
    __match_args__ = ("value", "dtype")
    value: int | float | bool

    def __init__(self, value: int | float | bool, dtype: DType) -> None:
        self.value, self.dtype, self.tree_size = value, dtype, 1


class Var(Expr):
    """An int64 variable: a loop variable, an iteration variable, or (`Symbol`) the size of a dimension.

    `lo` and `hi` are None: the range of a variable is that of its loop.
    """

    __slots__ = ("name",)
    __match_args__ = ("name",)
    lo: int | None = None
    hi: int | None = None

    def __init__(self, name: str) -> None:
        self.name, self.dtype, self.tree_size = name, int64, 1

    def renamed(self, name: str) -> "Var":
        """The same kind of variable, with the same range, under another name."""
        return Var(name)


class Symbol(Var):
    """A size that is known only at run time, with its declared range `lo`..`hi`, inclusive; None where open."""

    __slots__ = ("hi", "lo")
    __match_args__ = ("name", "lo", "hi")

    def __init__(self, name: str, lo: int | None = None, hi: int | None = None) -> None:
        super().__init__(name)
        self.lo, self.hi = lo, hi

    def renamed(self, name: str) -> Var:
        """The same kind of variable, with the same range, under another name."""
        return Symbol(name, self.lo, self.hi)


class Unary(Expr):
    """An operation on one value."""

    __slots__ = ("a", "op")
    __match_args__ = ("op", "a")
    op: UnaryOp

    def __init__(self, op: UnaryOp, a: Expr) -> None:
        self.op, self.a, self.tree_size = op, a, a.tree_size + 1
        self.dtype = boolean if op in PREDICATES else a.dtype

    def children(self) -> tuple[Expr, ...]:
        """The operands, in order."""
        return (self.a,)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        """The same operation on other operands, simplified."""
        return _Builders.unary(self.op, children[0])


class Binary(Expr):
    """An operation on two values of one type."""

    __slots__ = ("a", "b", "op")
    __match_args__ = ("op", "a", "b")
    op: BinaryOp

    def __init__(self, op: BinaryOp, a: Expr, b: Expr) -> None:
        self.op, self.a, self.b, self.tree_size = op, a, b, a.tree_size + b.tree_size + 1
        self.dtype = boolean if op in COMPARISONS else a.dtype

    def children(self) -> tuple[Expr, ...]:
        """The operands, in order."""
        return (self.a, self.b)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        """The same operation on other operands, simplified."""
        return _Builders.binary(self.op, children[0], children[1])


class Select(Expr):
    """`a` where `cond` holds, else `b`; lazy."""

    __slots__ = ("a", "b", "cond")
    __match_args__ = ("cond", "a", "b")

    def __init__(self, cond: Expr, a: Expr, b: Expr) -> None:
        self.cond, self.a, self.b, self.dtype = cond, a, b, a.dtype
        self.tree_size = cond.tree_size + a.tree_size + b.tree_size + 1

    def children(self) -> tuple[Expr, ...]:
        """The operands, in order."""
        return (self.cond, self.a, self.b)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        """The same operation on other operands, simplified."""
        return _Builders.select(*children)


class Cast(Expr):
    """Conversion to another type (float to integer truncates towards zero; to bool means `!= 0`)."""

    __slots__ = ("a",)
    __match_args__ = ("dtype", "a")

    def __init__(self, dtype: DType, a: Expr) -> None:
        self.a, self.dtype, self.tree_size = a, dtype, a.tree_size + 1

    def children(self) -> tuple[Expr, ...]:
        """The operands, in order."""
        return (self.a,)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        """The same operation on other operands, simplified."""
        return _Builders.cast(self.dtype, children[0])


class MemoryScope(StrEnum):
    """Where a buffer is stored. `register` buffers have constant shapes and indices and become SSA values."""

    MEMORY = "memory"
    STACK = "stack"
    REGISTER = "register"


@dataclass(frozen=True, slots=True)
class Buffer:
    """Named, typed storage in row-major order; also a tensor of a computation.

    Attributes:
        name: unique within a function or program.
        shape: int64 expressions over the symbols of dimensions; () for a scalar.
        dtype: element type.
        scope: memory, stack or registers.
    """

    name: str
    shape: "tuple[Expr, ...]"
    dtype: DType
    scope: MemoryScope = MemoryScope.MEMORY

    def __hash__(self) -> int:
        return hash((self.name, self.shape))  # hashes of enumerations are computed in Python

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> "Expr":
        """Number of elements."""
        total: Expr = const(1)
        for extent in self.shape:
            total = total * extent
        return total

    def renamed(self, name: str) -> "Buffer":
        """The same buffer under another name."""
        return replace(self, name=name)

    def __getitem__(self, indices: "tuple[Expr | int, ...] | Expr | int") -> "Expr":
        listed = indices if isinstance(indices, tuple) else (indices,)
        if len(listed) != self.rank:
            raise TypeError(f"buffer {self.name!r} has {self.rank} dimensions, got {len(listed)} indices")
        return Load(self, tuple(as_expr(i) for i in listed))

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


class Load(Expr):
    """The element of `buffer` at `indices` (int64, one per dimension)."""

    __slots__ = ("buffer", "indices")
    __match_args__ = ("buffer", "indices")

    def __init__(self, buffer: Buffer, indices: tuple[Expr, ...]) -> None:
        self.buffer, self.indices, self.dtype = buffer, indices, buffer.dtype
        self.tree_size = sum([i.tree_size for i in indices], 1)

    def children(self) -> tuple[Expr, ...]:
        """The operands, in order."""
        return self.indices

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        """The same operation on other operands, simplified."""
        return Load(self.buffer, children)


_MAX_CACHED_INT = 4096
_cached_ints: "dict[int, Const]" = {}
"""Cached nodes of small integers, the most frequent literals of indices."""


def const(value: int | float | bool, dtype: DType = int64) -> Const:
    """A literal of the given type; the value is converted by wrapping or rounding, as in NumPy."""
    if dtype is int64 and type(value) is int and -_MAX_CACHED_INT <= value <= _MAX_CACHED_INT:
        cached = _cached_ints.get(value)
        if cached is None:
            cached = _cached_ints[value] = Const(value, int64)
        return cached
    if dtype.kind == "b":
        return Const(bool(value), dtype)
    if dtype.is_int:
        bits = int(value) & ((1 << dtype.bits) - 1)
        if dtype.kind == "i" and bits >> (dtype.bits - 1):
            bits -= 1 << dtype.bits
        return Const(bits, dtype)
    with np.errstate(over="ignore"):
        return Const(float(dtype.numpy.type(value)), dtype)


def as_expr(value: "Expr | int | float | bool", like: DType = int64) -> Expr:
    """`value` itself if it is an expression, else its literal of type `like`."""
    return value if isinstance(value, Expr) else const(value, like)


TRUE = Const(True, boolean)
FALSE = Const(False, boolean)
