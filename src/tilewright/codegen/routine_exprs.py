"""Expressions of routines as typed LLVM values."""

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from llvmlite import ir

from tilewright.codegen.arith import Arith
from tilewright.codegen.llvm_types import I1, I64, constant, memory_type, register_type, shared_counter
from tilewright.codegen.timestamps import read_clock
from tilewright.errors import InternalError
from tilewright.expr.dtype import DType, boolean, float32, float64, int64, uint64

_GOLDEN_RATIO = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio: multiples of neighbouring numbers are far apart (multiplicative hashing)."""


@dataclass(frozen=True, slots=True)
class Typed:
    """A number: its type, its register value, and whether it is a literal, which takes the type of what it meets."""

    dtype: DType
    value: ir.Value
    is_literal: bool = False


@dataclass(frozen=True, slots=True)
class BufferValue:
    """A flat buffer: element type, address and number of elements."""

    dtype: DType
    pointer: ir.Value
    length: ir.Value


def loaded_type(dtype: DType) -> DType:
    """The type of an element in arithmetic: integers of fewer than 64 bits become int64."""
    return int64 if dtype.is_int and dtype is not uint64 else dtype


def _common_type(x: Typed, y: Typed) -> DType:
    """The type in which two numbers meet: a literal takes that of the other one where it can, floats go before
    integers, wider floats before narrower ones.

    Raises:
        InternalError: one is signed and the other one is not.
    """
    if x.dtype == y.dtype:
        return x.dtype
    if x.is_literal != y.is_literal:
        literal, number = (x, y) if x.is_literal else (y, x)
        keeps = number.dtype is boolean or (literal.dtype.is_float and not number.dtype.is_float)
        return literal.dtype if keeps else number.dtype
    if x.dtype.is_float and y.dtype.is_float:
        return float32 if x.dtype.bits == y.dtype.bits else max(x.dtype, y.dtype, key=lambda t: t.bits)
    if x.dtype.is_float or y.dtype.is_float:
        return x.dtype if x.dtype.is_float else y.dtype
    if boolean not in (x.dtype, y.dtype):
        raise InternalError(f"{x.dtype} and {y.dtype} have no common type; convert one of them", where="routine")
    return y.dtype if x.dtype is boolean else x.dtype


_BINARY: Mapping[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "floordiv", ast.Mod: "mod", ast.LShift: "shl",
    ast.RShift: "shr", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor", ast.Div: "div",
}  # fmt: skip
_COMPARISONS: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
}  # fmt: skip


class RoutineExprs:
    """Emits expressions at a builder's position.

    Args:
        builder: where the instructions go.
        arith: operations at the same position.
        variable: the value of a name; None where it has none.
        buffers: by name.
        check_index: emits the check of an index.
        call: emits the call of a function of the routine's module; None where there is none of that name.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        arith: Arith,
        variable: Callable[[str], Typed | None],
        buffers: Mapping[str, BufferValue],
        check_index: Callable[[BufferValue, ir.Value, ast.expr], None],
        call: Callable[[str, Sequence[Typed | BufferValue]], Typed | None],
    ) -> None:
        self._builder, self._arith, self._variable, self._buffers = builder, arith, variable, buffers
        self._check_index, self._call_function = check_index, call

    # types

    def literal(self, number: bool | int | float) -> Typed:
        """A literal number."""
        if isinstance(number, bool):
            return Typed(boolean, I1(int(number)))
        if isinstance(number, int):
            return Typed(int64, I64(number), is_literal=True)
        return Typed(float64, constant(register_type(float64), number), is_literal=True)

    def converted(self, x: Typed, dtype: DType) -> ir.Value:
        """The value in another type.

        Raises:
            InternalError: a float becomes an integer without `int` or `as_integer`.
        """
        if x.dtype.is_float and not dtype.is_float:
            raise InternalError(f"a value of type {x.dtype} becomes {dtype}; convert it", where="routine")
        return self._arith.cast(x.dtype, dtype, x.value)

    def to_element(self, dtype: DType, x: Typed) -> ir.Value:
        """What a store to a buffer of a type writes."""
        return self._arith.to_memory(dtype, self.converted(x, dtype))

    def _in_one_type(self, x: Typed, y: Typed) -> tuple[DType, ir.Value, ir.Value]:
        """Two values in one type."""
        dtype = _common_type(x, y)
        return dtype, self.converted(x, dtype), self.converted(y, dtype)

    # expressions

    def integer(self, e: ast.expr) -> ir.Value:
        """The value of an expression that must be an integer."""
        x = self.value(e)
        if x.dtype not in (int64, uint64, boolean):
            raise InternalError(f"expected an integer, got {x.dtype}", where=f"routine: {ast.unparse(e)}")
        return self._arith.cast(x.dtype, int64, x.value)

    def condition(self, e: ast.expr) -> ir.Value:
        """The value of an expression as a bool."""
        x = self.value(e)
        return self._arith.cast(x.dtype, boolean, x.value)

    def value(self, e: ast.expr) -> Typed:
        """The value of any expression.

        Raises:
            InternalError: it is none of the subset.
        """
        match e:
            case ast.Constant(bool() | int() | float() as number):
                return self.literal(number)
            case ast.Name(name):
                known = self._variable(name)
                if known is not None:
                    return known
            case ast.BinOp(a, op, b):
                return self._binary(op, self.value(a), self.value(b))
            case ast.UnaryOp(op, a):
                return self._unary(op, a)
            case ast.BoolOp(op, values):
                return self._lazy(isinstance(op, ast.And), values)
            case ast.Compare(a, ops, others):
                return self._compare(self.value(a), ops, others)
            case ast.IfExp(test, a, b):
                return self._select(test, a, b)
            case ast.Subscript(ast.Name(name), index) if name in self._buffers:
                return self._load(self._buffers[name], index)
            case ast.Call(ast.Name(name), arguments, []):
                return self._call(name, arguments)
            case _:
                pass
        raise InternalError("no expression of routines", where=f"routine: {ast.unparse(e)}")

    def address(self, buffer: BufferValue, index: ast.expr) -> ir.Value:
        """The address of an element, whose index is checked."""
        position = self.integer(index)
        self._check_index(buffer, position, index)
        return self._builder.gep(buffer.pointer, [position], source_etype=memory_type(buffer.dtype))

    def _load(self, buffer: BufferValue, index: ast.expr) -> Typed:
        address = self.address(buffer, index)
        stored = self._builder.load(address, align=buffer.dtype.bytes, typ=memory_type(buffer.dtype))
        dtype = loaded_type(buffer.dtype)
        return Typed(dtype, self._arith.cast(buffer.dtype, dtype, self._arith.from_memory(buffer.dtype, stored)))

    def _binary(self, op: ast.operator, x: Typed, y: Typed) -> Typed:
        is_literal = x.is_literal and y.is_literal
        if isinstance(op, ast.Div) and not x.dtype.is_float and not y.dtype.is_float:
            x, y = (Typed(float64, self.converted(v, float64)) for v in (x, y))
        dtype, a, b = self._in_one_type(x, y)
        name = _BINARY[type(op)]
        if dtype is boolean and name not in ("and", "or", "xor"):
            dtype, a, b = int64, self._arith.cast(boolean, int64, a), self._arith.cast(boolean, int64, b)
        return Typed(dtype, self._arith.binary(name, dtype, a, b), is_literal)

    def _unary(self, op: ast.unaryop, operand: ast.expr) -> Typed:
        if isinstance(op, ast.Not):
            return Typed(boolean, self._builder.xor(self.condition(operand), I1(1)))
        if isinstance(operand, ast.Constant) and isinstance(op, ast.USub) and isinstance(operand.value, int | float):
            return self.literal(-operand.value)
        x = self.value(operand)
        match op:
            case ast.USub():
                return Typed(x.dtype, self._arith.unary("neg", x.dtype, x.value), x.is_literal)
            case ast.Invert():
                return Typed(x.dtype, self._arith.unary("not", x.dtype, x.value))
            case _:
                return x

    def _lazy(self, is_and: bool, values: Sequence[ast.expr]) -> Typed:
        """`and` or `or`: an operand is evaluated only where those before it do not decide."""
        b = self._builder
        end = b.function.append_basic_block("decided")
        incoming: list[tuple[ir.Value, ir.Block]] = []
        for k, e in enumerate(values):
            test = self.condition(e)
            if k == len(values) - 1:
                incoming.append((test, b.block))
                b.branch(end)
                break
            more = b.function.append_basic_block("more")
            incoming.append((I1(int(not is_and)), b.block))
            b.cbranch(test, *((more, end) if is_and else (end, more)))
            b.position_at_end(more)
        b.position_at_end(end)
        phi = b.phi(I1)
        for value, block in incoming:
            phi.add_incoming(value, block)
        return Typed(boolean, phi)

    def _compare(self, x: Typed, ops: Sequence[ast.cmpop], others: Sequence[ast.expr]) -> Typed:
        result: ir.Value = I1(1)
        for op, e in zip(ops, others, strict=True):
            y = self.value(e)
            dtype, a, b = self._in_one_type(x, y)
            test = self._arith.binary(_COMPARISONS[type(op)], dtype, a, b)
            result = test if len(ops) == 1 else self._builder.and_(result, test)
            x = y
        return Typed(boolean, result)

    def _select(self, test: ast.expr, a: ast.expr, b: ast.expr) -> Typed:
        builder = self._builder
        first, second, end = (builder.function.append_basic_block(n) for n in ("first", "second", "end"))
        builder.cbranch(self.condition(test), first, second)
        arms: list[tuple[Typed, ir.Block]] = []
        for block, e in ((first, a), (second, b)):
            builder.position_at_end(block)
            x = self.value(e)
            arms.append((x, builder.block))
        # the types of both are known only now
        dtype = _common_type(arms[0][0], arms[1][0])
        values: list[tuple[ir.Value, ir.Block]] = []
        for x, block in arms:
            builder.position_at_end(block)
            values.append((self.converted(x, dtype), builder.block))
            builder.branch(end)
        builder.position_at_end(end)
        phi = builder.phi(register_type(dtype))
        for value, block in values:
            phi.add_incoming(value, block)
        return Typed(dtype, phi)

    # calls

    def _call(self, name: str, arguments: Sequence[ast.expr]) -> Typed:
        if name == "len" and isinstance(arguments[0], ast.Name):
            return Typed(int64, self._buffers[arguments[0].id].length)
        if name == "entropy" and not arguments:
            return self._entropy()
        if name == "copy_bits":
            return self._copy_bits(arguments)
        if name == "element" and isinstance(arguments[0], ast.Name):
            return self._element(self._buffers[arguments[0].id].dtype, self.value(arguments[1]))
        operands = [
            self._buffers[e.id] if isinstance(e, ast.Name) and e.id in self._buffers else self.value(e)
            for e in arguments
        ]
        numbers = [x for x in operands if isinstance(x, Typed)]
        if len(numbers) == len(operands):
            known = self._known_function(name, numbers)
            if known is not None:
                return known
        result = self._call_function(name, operands)
        if result is None:
            raise InternalError(f"there is no function {name!r} in routines", where="routine")
        return result

    def _entropy(self) -> Typed:
        """The processor's clock, which differs between runs, plus a hash of what differs within one of its ticks: the
        module, by an address, and the number of the call."""
        b = self._builder
        calls = shared_counter(b.module, "entropy.calls")
        call = b.atomic_rmw("add", calls, I64(1), "monotonic")
        module = b.ptrtoint(calls, I64)
        return Typed(int64, b.add(read_clock(b), b.mul(b.add(module, call), I64(_GOLDEN_RATIO))))

    def _copy_bits(self, arguments: Sequence[ast.expr]) -> Typed:
        """Stores the bits of an element of one buffer to one of another, whose type is as wide."""
        match arguments:
            case [ast.Name(source), i, ast.Name(target), j]:
                a, b = self._buffers[source], self._buffers[target]
                if a.dtype.bits != b.dtype.bits:
                    what = f"expected types of equal width, got {a.dtype} and {b.dtype}"
                    raise InternalError(what, where="routine: copy_bits")
                kind = ir.IntType(a.dtype.bits)
                bits = self._builder.load(self.address(a, i), align=a.dtype.bytes, typ=kind)
                self._builder.store(bits, self.address(b, j), align=a.dtype.bytes)
                return self.literal(0)
            case _:
                raise InternalError("expected a buffer, an index, a buffer and an index", where="routine: copy_bits")

    def _element(self, dtype: DType, x: Typed) -> Typed:
        """A number in the type of elements, rounded or wrapped like a stored one."""
        result = loaded_type(dtype)
        stored = self._arith.cast(x.dtype, dtype, x.value)
        return Typed(result, self._arith.cast(dtype, result, stored))

    def _known_function(self, name: str, x: Sequence[Typed]) -> Typed | None:
        """The value of a function that every routine knows; None for other functions."""
        arith, first = self._arith, x[0]
        match name:
            case "min" | "max" if len(x) == 2:
                # Python's, which returns the first one unless the second is beyond it
                dtype, a, b = self._in_one_type(x[0], x[1])
                is_second = arith.binary("lt" if name == "min" else "gt", dtype, b, a)
                return Typed(dtype, self._builder.select(is_second, b, a))
            case "abs":
                return Typed(first.dtype, arith.unary("abs", first.dtype, first.value), first.is_literal)
            case "int" | "as_integer":
                return Typed(int64, arith.cast(first.dtype, int64, first.value))
            case "float":
                return Typed(float64, arith.cast(first.dtype, float64, first.value))
            case "bool":
                return Typed(boolean, arith.cast(first.dtype, boolean, first.value))
            case "is_nan":
                return Typed(boolean, arith.binary("ne", first.dtype, first.value, first.value))
            case "sqrt" | "floor":
                return Typed(first.dtype, arith.unary(name, first.dtype, first.value))
            case _:
                return None
