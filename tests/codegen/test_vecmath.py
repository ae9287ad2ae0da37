"""Vector math against wider references: ULP bounds, special values, lane counts, every available instruction set."""

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from llvmlite import binding as llvm
from llvmlite import ir

from tilewright.codegen.vecmath import ULP_BOUNDS, emit, supports
from tilewright.errors import InternalError

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

Array = Any


@dataclass(frozen=True)
class Isa:
    """Target features, and the lanes of one register of 32-bit elements."""

    cpu: str
    features: tuple[str, ...]
    lanes: int


def _isas() -> dict[str, Isa]:
    host = llvm.get_host_cpu_features()
    if not llvm.get_process_triple().startswith("x86_64"):
        return {"native": Isa("generic", (), 4)}
    avx2 = ("+avx2", "+fma")
    levels = {
        "sse2": Isa("x86-64", (), 4),
        "avx2": Isa("x86-64", avx2, 8),
        "avx512": Isa("x86-64", (*avx2, "+avx512f", "+avx512vl", "+avx512dq", "+avx512bw"), 16),
    }
    return {name: isa for name, isa in levels.items() if all(host.get(f[1:], False) for f in isa.features)}


ISAS = _isas()
BEST = list(ISAS)[-1]
NO_NATIVE_REMAINDER = {"fmod", "mod"}


@dataclass(frozen=True)
class Kernel:
    """A compiled loop `out[i] = f(a[i], b[i])`; keeps the engine that owns the code."""

    engine: Any
    call: Callable[..., None]
    assembly: str

    def __call__(self, a: Array, b: Array | None = None) -> Array:
        out = np.empty_like(a)
        second = a if b is None else b
        self.call(a.ctypes.data, second.ctypes.data, out.ctypes.data, len(a))
        return out


def build_ir(name: str, kind: ir.Type, features: tuple[str, ...], constant: float | None = None) -> ir.Module:
    """A module with the loop over `name`; a `constant` takes the place of the second argument."""
    element = kind.element if isinstance(kind, ir.VectorType) else kind
    lanes = kind.count if isinstance(kind, ir.VectorType) else 1
    index, pointer = ir.IntType(64), ir.PointerType()
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer, pointer, pointer, index]), "kernel")
    entry, loop, done = (function.append_basic_block(n) for n in ("entry", "loop", "done"))
    builder = ir.IRBuilder(entry)
    builder.branch(loop)
    builder.position_at_end(loop)
    i = builder.phi(index)

    def address(p: ir.Value) -> ir.Value:
        return builder.gep(p, [i], source_etype=element)

    args: list[ir.Value] = [
        builder.load(address(p), align=4, typ=kind) for p in function.args[: ULP_BOUNDS[name].arity]
    ]
    if constant is not None:
        args[1] = ir.Constant(kind, [constant] * lanes if isinstance(kind, ir.VectorType) else constant)
    result = emit(builder, name, args, features)
    assert len(function.blocks) == 3, "emit must not branch"
    if result.type != kind:
        result = builder.uitofp(result, kind)
    builder.store(result, address(function.args[2]), align=4)
    following = builder.add(i, index(lanes))
    i.add_incoming(index(0), entry)
    i.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed("<", following, function.args[3]), loop, done)
    builder.position_at_end(done)
    builder.ret_void()
    return module


@cache
def kernel(
    name: str, isa: str, bits: int = 32, lanes: int = -1, plain: bool = False, constant: float | None = None
) -> Kernel:
    """Compiles; `lanes` 0 is a scalar, -1 one register's lanes; `plain` hides the features from `emit`."""
    target = ISAS[isa]
    lanes = target.lanes * 32 // bits if lanes < 0 else lanes
    element = ir.FloatType() if bits == 32 else ir.DoubleType()
    kind = ir.VectorType(element, lanes) if lanes else element
    module = llvm.parse_assembly(str(build_ir(name, kind, () if plain else target.features, constant)))
    module.verify()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=target.cpu, features=",".join(target.features), opt=2
    )
    assembly = machine.emit_assembly(module)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    return Kernel(engine, signature(engine.get_function_address("kernel")), assembly)


def _erf(x: Array) -> Array:
    return np.fromiter(map(math.erf, x.tolist()), np.float64, len(x)).astype(x.dtype)


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


REFERENCES: dict[str, Callable[..., Array]] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sqrt": np.sqrt, "rsqrt": _rsqrt, "reciprocal": np.reciprocal,
    "tanh": np.tanh, "sigmoid": _sigmoid, "softplus": _softplus,
    "erf": _erf, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "pow": np.power,
    "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc, "abs": np.abs, "neg": np.negative,
    "sign": np.sign, "copysign": np.copysign, "fmod": np.fmod, "mod": np.mod, "min": np.minimum, "max": np.maximum,
    "isnan": np.isnan, "isinf": np.isinf,
}  # fmt: skip
INEXACT = [name for name in ULP_BOUNDS if ULP_BOUNDS[name].arity == 1 and ULP_BOUNDS[name].float32 > 0]
EXACT = [name for name in ULP_BOUNDS if ULP_BOUNDS[name].float32 == 0]


def ulp_errors(actual: Array, expected: Array, dtype: type) -> Array:
    """|got - expected| in ULP of `dtype`; inf counts as the next power of two, a NaN on one side only is an infinite
    error."""
    info: Any = np.finfo(dtype)  # pyright: ignore[reportUnknownVariableType]
    limit = expected.dtype.type(2) ** info.maxexp
    with np.errstate(invalid="ignore"):  # signalling NaNs pass through
        wide, reference = (np.clip(a.astype(expected.dtype), -limit, limit) for a in (actual, expected))
    exponent = np.frexp(np.minimum(np.abs(reference), limit * 0.75))[1]
    unit = np.ldexp(expected.dtype.type(1), np.maximum(exponent - 1, info.minexp) - info.nmant)
    errors = np.abs(wide - reference) / unit
    errors[np.isnan(expected)] = 0
    errors[np.isnan(actual) != np.isnan(expected)] = np.inf
    return errors


_MAGNITUDES = np.array(
    [0.0, 2.0**-149, 2.0**-126, 1e-5, 0.5, 1 - 2.0**-24, 1.0, 1 + 2.0**-23, 1.5, 2.0, 2.5, 3.0, 9.01, 17.0, 87.34,
     88.72283, 88.72284, 103.9, 104.5, 127.0, 128.0, 149.0, 150.0, 2.0**22 + 0.5, 2.0**23 + 1, 2.0**24, 1e5, 1e30,
     3.4028235e38, np.inf, np.nan]
)  # fmt: skip
SPECIAL = np.concatenate([_MAGNITUDES, -_MAGNITUDES]).astype(np.float32)


@cache
def sample(bits: int = 32, count: int = 1 << 21) -> Array:
    """Special values, then random bit patterns (uniform over exponents); half of it log-uniform in [-128, 128]."""
    rng = np.random.default_rng(20240607)
    half = count // 2
    patterns = rng.integers(0, 1 << bits, half, dtype=np.uint64).astype(f"uint{bits}")
    values = np.concatenate([patterns.view(f"float{bits}"), rng.uniform(-1, 1, half).astype(f"float{bits}")])
    values[half:] *= np.exp2(rng.uniform(-8, 7, half)).astype(values.dtype)
    values[: len(SPECIAL)] = SPECIAL
    return values


@cache
def reference(name: str, bits: int = 32) -> Array:
    """The expected values in the next wider type."""
    x = sample(32) if bits == 32 else sample(64, 1 << 14)
    with np.errstate(all="ignore"):
        return REFERENCES[name](x.astype(np.float64 if bits == 32 else np.longdouble))


def test_every_function_has_a_reference_and_a_note():
    assert set(REFERENCES) == set(ULP_BOUNDS)
    assert all(supports(name, dtype) for name in ULP_BOUNDS for dtype in ("float32", "float64"))
    assert not supports("exp", "int32")
    assert not supports("digamma", "float32")


@pytest.mark.parametrize("name", INEXACT)
def test_float32_bound(name: str):
    x, expected = sample(), reference(name)
    for isa in ISAS:
        actual = kernel(name, isa)(x)
        errors = ulp_errors(actual, expected, np.float32)
        worst = int(errors.argmax())
        assert errors[worst] <= ULP_BOUNDS[name].float32, (
            f"{isa}: {name}({x[worst]!r}) = {actual[worst]!r}, {errors[worst]} ULP"
        )
        zeros = (actual == 0) & (expected == 0)
        assert np.array_equal(np.signbit(actual[zeros]), np.signbit(expected[zeros])), f"{isa}: sign of zero"


@pytest.mark.parametrize("name", INEXACT)
def test_float64_bound(name: str):
    x, expected = sample(64, 1 << 14), reference(name, 64)
    actual = kernel(name, BEST, 64)(x)
    errors = ulp_errors(actual, expected, np.float64)
    worst = int(errors.argmax())
    assert errors[worst] <= ULP_BOUNDS[name].float64, f"{name}({x[worst]!r}) = {actual[worst]!r}, {errors[worst]} ULP"


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("name", EXACT)
def test_exact_functions_equal_numpy(name: str, bits: int):
    x = sample(bits, 1 << 14)
    y = np.random.default_rng(7).permutation(x)
    y[::5] = x[::5]
    args = (x, y)[: ULP_BOUNDS[name].arity]
    with np.errstate(all="ignore"):
        expected = REFERENCES[name](*args).astype(x.dtype)
    for isa in ISAS:
        actual = kernel(name, isa, bits)(*args)
        np.testing.assert_array_equal(actual, expected, err_msg=isa)
        if name not in ("min", "max"):
            finite = ~np.isnan(expected)
            np.testing.assert_array_equal(np.signbit(actual[finite]), np.signbit(expected[finite]), err_msg=isa)


def _pairs(bits: int, count: int) -> tuple[Array, Array]:
    grid_x, grid_y = (a.ravel() for a in np.meshgrid(SPECIAL, SPECIAL))
    rng = np.random.default_rng(11)
    x = np.exp2(rng.uniform(-149, 128, count))
    # Exponents such that the result is finite, and bases close to one with large exponents.
    y = rng.uniform(-150, 129, count) / np.log2(x)
    near_one = count // 4
    x[:near_one] = 1 + rng.uniform(-1, 1, near_one) * np.exp2(rng.uniform(-20, -1, near_one))
    y[:near_one] = rng.uniform(-150, 129, near_one) / np.log2(x[:near_one])
    negative = slice(near_one, 2 * near_one)
    x[negative], y[negative] = -np.abs(x[negative]), np.rint(y[negative])
    dtype = np.float32 if bits == 32 else np.float64
    return np.concatenate([grid_x, x]).astype(dtype), np.concatenate([grid_y, y]).astype(dtype)


@pytest.mark.parametrize("bits", [32, 64])
def test_pow_bound_and_special_values(bits: int):
    x, y = _pairs(bits, (1 << 20) - len(SPECIAL) ** 2 if bits == 32 else (1 << 13) - len(SPECIAL) ** 2)
    dtype, wide = (np.float32, np.float64) if bits == 32 else (np.float64, np.longdouble)
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(wide), y.astype(wide))
    for isa in ISAS:
        actual = kernel("pow", isa, bits)(x, y)
        errors = ulp_errors(actual, expected, dtype)
        worst = int(errors.argmax())
        bound = ULP_BOUNDS["pow"].float32 if bits == 32 else ULP_BOUNDS["pow"].float64
        assert errors[worst] <= bound, (
            f"{isa}: pow({x[worst]!r}, {y[worst]!r}) = {actual[worst]!r}, {errors[worst]} ULP"
        )
        number = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(actual[number]), np.signbit(expected[number]))


@pytest.mark.parametrize("name", ["mod", "fmod"])
def test_remainders_of_zero_and_infinite_operands(name: str):
    x, y = (a.ravel().astype(np.float32) for a in np.meshgrid(SPECIAL[:40], SPECIAL[-40:]))
    with np.errstate(all="ignore"):
        expected = REFERENCES[name](x, y)
    actual = kernel(name, BEST)(x, y)
    np.testing.assert_array_equal(actual, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual[number]), np.signbit(expected[number]))


@pytest.mark.parametrize(
    "name", ["exp", "exp2", "log", "tanh", "sigmoid", "softplus", "erf", "sin", "pow", "round", "max"]
)
def test_same_bits_for_any_number_of_lanes(name: str):
    x = sample()[: 3 * 64 * 4]
    y = np.ascontiguousarray(x[::-1])
    expected = kernel(name, BEST)(x, y).view(np.uint32)
    for lanes in (0, 1, 3, 64):
        np.testing.assert_array_equal(
            kernel(name, BEST, 32, lanes)(x, y).view(np.uint32), expected, err_msg=f"{lanes} lanes"
        )


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "pow", "erf"])
def test_float64_lanes(name: str):
    x = sample(64, 1 << 14)[: 3 * 64 * 4]
    y = np.ascontiguousarray(x[::-1])
    expected = kernel(name, BEST, 64)(x, y)
    for lanes in (0, 3):
        np.testing.assert_array_equal(kernel(name, BEST, 64, lanes)(x, y), expected)


@pytest.mark.skipif("avx512" not in ISAS, reason="needs AVX-512")
@pytest.mark.parametrize("name", ["exp", "exp2", "sigmoid", "softplus"])
def test_avx512_scaling_gives_the_same_bits(name: str):
    x = sample()
    fast, plain = kernel(name, "avx512"), kernel(name, "avx512", plain=True)
    np.testing.assert_array_equal(fast(x).view(np.uint32), plain(x).view(np.uint32))
    assert "vscalefps" in fast.assembly
    assert ("vrangeps" in fast.assembly) == (name == "exp")
    assert "vscalefps" not in plain.assembly


@pytest.mark.skipif(BEST == "sse2", reason="plain SSE2 calls the library to round")
@pytest.mark.parametrize("name", sorted(set(ULP_BOUNDS) - NO_NATIVE_REMAINDER))
def test_float32_calls_no_library(name: str):
    code = kernel(name, BEST).assembly
    assert not [line for line in code.splitlines() if line.strip().startswith(("call", "bl\t", "blr\t"))]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("name", "expected"), [("max", [3.0, 0.5, np.nan, np.inf]), ("min", [0.5, -2.0, np.nan, 0.5])])
def test_extremum_with_a_constant_keeps_nan(isa: str, name: str, expected: list[float]):
    x = np.resize(np.array([3.0, -2.0, np.nan, np.inf], np.float32), 64)
    np.testing.assert_array_equal(kernel(name, isa, constant=0.5)(x), np.resize(np.array(expected, np.float32), 64))


@pytest.mark.parametrize("name", ["tanh", "erf", "sigmoid"])
def test_saturating_functions_stay_in_range(name: str):
    x = np.linspace(2, 20, 1 << 20, dtype=np.float32)
    for isa in ISAS:
        assert kernel(name, isa)(x).max() == 1.0
        assert kernel(name, isa)(-x).min() >= -1.0


def _builder(*kinds: ir.Type) -> tuple[ir.IRBuilder, list[ir.Value]]:
    function = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), kinds), "f")
    return ir.IRBuilder(function.append_basic_block()), list(function.args)


def test_unknown_function_is_refused():
    builder, args = _builder(ir.FloatType())
    with pytest.raises(InternalError, match="vector math has no function 'digamma'"):
        emit(builder, "digamma", args)


def test_wrong_number_of_arguments_is_refused():
    builder, args = _builder(ir.FloatType())
    with pytest.raises(InternalError, match="vector math pow: expected 2 arguments, got 1"):
        emit(builder, "pow", args)


@pytest.mark.parametrize(
    ("kinds", "types"),
    [((ir.IntType(32), ir.IntType(32)), "i32, i32"), ((ir.FloatType(), ir.DoubleType()), "float, double")],
)
def test_wrong_types_are_refused(kinds: tuple[ir.Type, ...], types: str):
    builder, args = _builder(*kinds)
    with pytest.raises(
        InternalError, match=f"vector math pow: expected arguments of one float or double type, got {types}"
    ):
        emit(builder, "pow", args)
