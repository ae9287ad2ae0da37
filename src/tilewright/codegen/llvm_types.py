"""LLVM types of elements in memory and in registers, and helpers for vectors: splats, shuffles, constants.

A bool is i1 in registers and i8 (0 or 1) in memory. float16 and bfloat16 are i16 in memory and a float that holds a
representable value in registers, so that arithmetic is float arithmetic followed by one rounding.
"""

from collections.abc import Sequence
from functools import lru_cache

from llvmlite import ir

from tilewright.errors import InternalError
from tilewright.expr.dtype import DType

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
FLOAT, DOUBLE, PTR, VOID = ir.FloatType(), ir.DoubleType(), ir.PointerType(), ir.VoidType()


def register_type(dtype: DType) -> ir.Type:
    """The type of a value in arithmetic."""
    if dtype.is_float:
        return DOUBLE if dtype.bits == 64 else FLOAT
    return I1 if dtype.kind == "b" else ir.IntType(dtype.bits)


def memory_type(dtype: DType) -> ir.Type:
    """The type of an element in memory."""
    if dtype.is_float and dtype.bits > 16:
        return register_type(dtype)
    return ir.IntType(dtype.bits)


def is_half(dtype: DType) -> bool:
    """Whether values are stored as 16-bit floating point."""
    return dtype.is_float and dtype.bits == 16


def vector_lanes(kind: ir.Type) -> int:
    """Lanes of a vector type; 0 for a scalar type."""
    return int(kind.count) if isinstance(kind, ir.VectorType) else 0


def lane_count(value: ir.Value) -> int:
    """Lanes of a value; 0 for a scalar."""
    return vector_lanes(value.type)


def element_type(kind: ir.Type) -> ir.Type:
    """The element type of a vector type, or the type itself."""
    return kind.element if isinstance(kind, ir.VectorType) else kind


def with_lanes(kind: ir.Type, lanes: int) -> ir.Type:
    """The vector type of `lanes` elements, or the element type for 0 lanes."""
    return ir.VectorType(kind, lanes) if lanes else kind


def constant(kind: ir.Type, value: int | float | Sequence[int] | Sequence[float]) -> ir.Constant:
    """A constant of a scalar or vector type; one number fills all lanes."""
    numbers = tuple(value) if isinstance(value, Sequence) else value
    # -0.0 and 0.0 are equal as cache keys, so the text belongs to the key
    return _constant(str(kind), kind, numbers, str(numbers))


class Splat(ir.Constant):
    """A vector constant whose lanes are all `number`; its text is short for any number of lanes."""

    def __init__(self, kind: ir.VectorType, number: int | float) -> None:
        super().__init__(kind, None)
        self.number = number
        self._element = ir.Constant(kind.element, number)

    def _get_reference(self) -> str:
        return f"splat ({self._element.type} {self._element.get_reference()})"


class UndefinedVector(ir.Constant):
    """A vector whose lanes are all undefined; llvmlite's own has a text per lane."""

    def __init__(self, kind: ir.VectorType) -> None:
        super().__init__(kind, None)

    def _get_reference(self) -> str:
        return "undef"


@lru_cache(maxsize=4096)
def _constant(_: str, kind: ir.Type, value: float | tuple[float, ...], __: str) -> ir.Constant:
    # shared objects: llvmlite renders the text of a constant once per object, and vectors have long texts
    base = element_type(kind)
    numbers = list(value) if isinstance(value, tuple) else [value]
    if isinstance(base, ir.IntType):
        half, whole = 1 << (base.width - 1), 1 << base.width
        numbers = [(int(n) + half) % whole - half if base.width > 1 else int(n) for n in numbers]
    if not isinstance(kind, ir.VectorType):
        return ir.Constant(kind, numbers[0])
    return ir.Constant(kind, numbers) if isinstance(value, tuple) else Splat(kind, numbers[0])


@lru_cache(maxsize=256)
def _undefined(_: str, kind: ir.Type) -> ir.Constant:
    return UndefinedVector(kind) if isinstance(kind, ir.VectorType) else ir.Constant(kind, ir.Undefined)


def is_constant_splat(value: ir.Value, number: int) -> bool:
    """Whether a value is a constant of which every lane has the magnitude `number`; true bits may be 1 or -1."""
    if isinstance(value, Splat):
        return abs(value.number) == number
    if not isinstance(value, ir.Constant):
        return False
    numbers = value.constant if isinstance(value.constant, list) else [value]
    return all(abs(n.constant) == number for n in numbers)


def constant_lanes(value: ir.Value) -> list[int | float] | None:
    """The numbers in the lanes of a constant vector; None for other values."""
    if isinstance(value, Splat):
        return [value.number] * lane_count(value)
    if isinstance(value, ir.Constant) and isinstance(value.constant, list):
        return [lane.constant for lane in value.constant]
    return None


def constant_mask(mask: ir.Value) -> list[bool] | None:
    """The lanes of a constant mask; None for other values."""
    lanes = constant_lanes(mask)
    return None if lanes is None or element_type(mask.type) != I1 else [bool(x) for x in lanes]


def logical_and(builder: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Whether both conditions hold; of constant masks a constant, whose number of active lanes decides how memory is
    accessed under it."""
    left, right = constant_mask(x), constant_mask(y)
    if left is None or right is None:
        return builder.and_(x, y)
    return constant(x.type, [int(a and b) for a, b in zip(left, right, strict=True)])


def undefined(kind: ir.Type) -> ir.Constant:
    """LLVM's `undef`."""
    return _undefined(str(kind), kind)


def constant_like(value: ir.Value, number: int | float) -> ir.Constant:
    """A constant of the type of `value`."""
    return constant(value.type, number)


def splat(builder: ir.IRBuilder, value: ir.Value, lanes: int) -> ir.Value:
    """A scalar in all lanes; a vector of as many lanes is returned as it is."""
    if lane_count(value) == lanes:
        return value
    if lane_count(value):
        raise InternalError(f"expected a scalar or {lanes} lanes, got {value.type}")
    kind = ir.VectorType(value.type, lanes)
    if isinstance(value, ir.Constant) and isinstance(value.constant, int | float):
        return constant(kind, value.constant)
    nothing = undefined(kind)
    first = builder.insert_element(nothing, value, I32(0))
    return builder.shuffle_vector(first, nothing, constant(ir.VectorType(I32, lanes), 0))


def broadcast(builder: ir.IRBuilder, *values: ir.Value) -> list[ir.Value]:
    """The values with equal lanes: scalars are splat where any is a vector."""
    lanes = max(lane_count(v) for v in values)
    return [splat(builder, v, lanes) if lanes else v for v in values]


def shuffle(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, lanes: Sequence[int]) -> ir.Value:
    """Lanes of the concatenation of two vectors; of constant masks a constant."""
    left, right = constant_mask(a), constant_mask(b)
    if left is not None and right is not None:
        joined = [*left, *right]
        return constant(ir.VectorType(I1, len(lanes)), [int(joined[i]) for i in lanes])
    return builder.shuffle_vector(a, b, constant(ir.VectorType(I32, len(lanes)), list(lanes)))


def as_opaque_pointer(value: ir.Value) -> ir.Value:
    """A stack slot, global or function as an opaque pointer; llvmlite gives these the typed pointers of older LLVM."""
    setattr(value, "type", PTR)  # noqa: B010 - the attribute is read-only only in the type stubs
    return value


def type_suffix(kind: ir.Type) -> str:
    """A type in the name of an overloaded intrinsic: `f32`, `v16i8`, `p0`, `v4p0`."""
    base = element_type(kind)
    if isinstance(base, ir.IntType):
        text = f"i{base.width}"
    elif isinstance(base, ir.PointerType):
        text = "p0"
    else:
        text = {"float": "f32", "double": "f64", "half": "f16"}[str(base)]
    return f"v{kind.count}{text}" if isinstance(kind, ir.VectorType) else text


def declare(module: ir.Module, name: str, result: ir.Type, args: Sequence[ir.Type]) -> ir.Function:
    """A function of the module, declared at its first use."""
    function = module.globals.get(name)
    return ir.Function(module, ir.FunctionType(result, list(args)), name) if function is None else function


def shared_counter(module: ir.Module, name: str) -> ir.Value:
    """Pointer to an i64 that all calls and threads of the module share, 0 at first, defined at its first use."""
    counter = module.globals.get(name)
    if counter is None:
        counter = ir.GlobalVariable(module, I64, name)
        counter.linkage, counter.initializer = "internal", I64(0)
    return as_opaque_pointer(counter)


def call_intrinsic(builder: ir.IRBuilder, name: str, result: ir.Type, args: Sequence[ir.Value]) -> ir.Value:
    """A call of the intrinsic `llvm.<name>`, the overload included in the name."""
    function = declare(builder.module, f"llvm.{name}", result, [a.type for a in args])
    return builder.call(function, list(args))


def call_system(b: ir.IRBuilder, number: int, arguments: list[ir.Value]) -> ir.Value:
    """A Linux system call through the C library's `syscall`; pointers or i64 in, i64 out, negative after errors."""
    function = b.module.globals.get("syscall")
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(I64, [I64], var_arg=True), "syscall")
    return b.call(function, [I64(number), *arguments])


def scalar_loop(module: ir.Module) -> ir.MDValue:
    """Metadata for the branch back of a loop that LLVM's vectorizer is to leave alone."""
    disable = module.add_metadata([ir.MetaDataString(module, "llvm.loop.vectorize.enable"), ir.IntType(1)(0)])
    # another operand for every loop, until the node refers to itself, as identities of loops must
    node = module.add_metadata([disable, I64(len(module.metadata))])
    node.operands = (node, disable)
    return node


def keep_loops_scalar(function: ir.Function) -> None:
    """Marks all loops of a function, so that LLVM's vectorizer leaves them alone.

    A branch to the block itself or to one before it is taken for a loop's: blocks are appended in their order.
    """
    positions = {block: k for k, block in enumerate(function.blocks)}
    for block in function.blocks:
        branch = block.terminator
        if branch is None:
            continue
        if any(isinstance(x, ir.Block) and positions[x] <= positions[block] for x in branch.operands):
            branch.set_metadata("llvm.loop", scalar_loop(function.module))
