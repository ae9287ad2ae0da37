"""Every operation on every element type, scalar and vector, against NumPy; including values that trap or overflow in
C."""

import itertools

import numpy as np
import pytest
from tests.codegen.native import TARGETS, Native

from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.dtype import DTYPES, DType, boolean
from tilewright.expr.nodes import COMPARISONS, Binary, Buffer, Cast, Expr, Load, Unary, Var, const
from tilewright.expr.numpy_semantics import apply_binary, apply_cast, apply_unary
from tilewright.loops.ir import Block, BlockIter, For, Func, IterKind, LoopKind, Store, seq

N = 61
RNG = np.random.default_rng(3)
FLOATS = [d for d in DTYPES.values() if d.is_float]
INTEGERS = [d for d in DTYPES.values() if d.is_int]
RTOL = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6, "float64": 1e-13}
EXACT = ("add", "sub", "mul", "div", "min", "max")
KINDS = (LoopKind.SERIAL, LoopKind.VECTORIZED)


def func_of(values: dict[str, Expr], params: tuple[Buffer, ...], v: Var) -> tuple[Func, tuple[Buffer, ...]]:
    """One loop per value and kind, each with a buffer of its own; `v` is the index."""
    outputs: list[Buffer] = []
    loops: list[For] = []
    for (name, value), kind in itertools.product(values.items(), KINDS):
        out = Buffer(f"{name}_{kind}", (const(N),), value.dtype)
        outputs.append(out)
        loop = Var(f"i_{out.name}")
        axis = Var(f"v_{out.name}")
        body = substitute(value, {v: axis})
        block = Block(out.name, (BlockIter(axis, const(N), IterKind.SPATIAL, loop),), Store(out, (axis,), body))
        loops.append(For(loop, const(N), kind, block))
    return Func("all_of", (*params, *outputs), (), (), seq(*loops)), tuple(outputs)


def values_of(dtype: DType, second: bool) -> np.ndarray:
    """Special values first, then random ones."""
    kind = dtype.numpy
    if dtype.kind == "b":
        return RNG.integers(0, 2, N).astype(bool)
    if dtype.is_float:
        special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 2.5, -2.5, 1e-7, 3.0, 60000.0, 1e-40]
        x = RNG.standard_normal(N) * 4
    else:
        info = np.iinfo(kind)
        special = [0, 1, info.min, info.max, 2, 3, 7, info.min + 1, -1 if info.min else 5]
        x = RNG.integers(max(info.min, -100), min(info.max, 100), N)
    pairs = np.array(list(itertools.product(special, special)), dtype=object)[:, int(second)]
    picked = RNG.permutation(len(pairs))[: N // 2] if dtype.is_float else np.arange(min(len(pairs), N))
    x = x.astype(object)
    x[: len(picked)] = pairs[picked] if not dtype.is_float else [special[(k * (5 if second else 3)) % len(special)]
                                                              for k in range(len(picked))]  # fmt: skip
    with np.errstate(all="ignore"):
        return np.array([kind.type(e) for e in x], dtype=kind)


def compare(actual: np.ndarray, expected: np.ndarray, dtype: DType, what: str, exact: bool) -> None:
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(actual, expected, err_msg=what)
        return
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    if exact:
        np.testing.assert_array_equal(a, b, err_msg=what)
    else:
        np.testing.assert_allclose(a, b, rtol=RTOL[dtype.name], atol=RTOL[dtype.name] * 1e-3, err_msg=what)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, boolean], ids=str)
def test_binary(dtype: DType, target: str) -> None:
    ops = [*COMPARISONS, "min", "max"]
    if dtype.is_float:
        ops += ["add", "sub", "mul", "div", "floordiv", "mod", "fmod", "pow"]
    elif dtype.is_int:
        ops += ["add", "sub", "mul", "floordiv", "mod", "fmod", "and", "or", "xor", "shl", "shr"]
    else:
        ops += ["and", "or", "xor"]
    v = Var("v")
    a, b = Buffer("A", (const(N),), dtype), Buffer("B", (const(N),), dtype)
    func, outputs = func_of({op: Binary(op, Load(a, (v,)), Load(b, (v,))) for op in sorted(ops)}, (a, b), v)
    x, y = values_of(dtype, False), values_of(dtype, True)
    arrays = {"A": x, "B": y, **{o.name: np.empty(N, o.dtype.numpy) for o in outputs}}
    actual = Native(func, target=target)(arrays)
    for op, kind in itertools.product(ops, KINDS):
        expected = apply_binary(op, x, y)
        result = actual[f"{op}_{kind}"]
        if dtype.is_float and op in ("floordiv", "mod"):
            # NumPy's results differ between types where an infinity is involved
            keep = np.isfinite(x.astype(float)) & np.isfinite(y.astype(float))
            expected, result = expected[keep], result[keep]
        compare(result, expected, dtype, f"{op} {kind}", op in EXACT)


def domain(op: str, x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.abs(x) if op in ("sqrt", "rsqrt", "log", "log1p") else x


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_unary_of_floats(dtype: DType, target: str) -> None:
    ops = ["neg", "abs", "sign", "sqrt", "rsqrt", "reciprocal", "exp", "log", "tanh", "sigmoid", "erf", "floor", "ceil",
           "round", "trunc", "isnan", "isinf", "softplus", "sin"]  # fmt: skip
    v = Var("v")
    a = Buffer("A", (const(N),), dtype)
    func, outputs = func_of({op: Unary(op, Load(a, (v,))) for op in ops}, (a,), v)
    x = values_of(dtype, False)
    actual = Native(func, target=target)({"A": x, **{o.name: np.empty(N, o.dtype.numpy) for o in outputs}})
    for op, kind in itertools.product(ops, KINDS):
        exact = op in ("neg", "abs", "sign", "floor", "ceil", "round", "trunc", "isnan", "isinf")
        compare(actual[f"{op}_{kind}"], apply_unary(op, x), dtype, f"{op} {kind}", exact)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_unary_and_power_of_integers(dtype: DType, target: str) -> None:
    v = Var("v")
    a, b = Buffer("A", (const(N),), dtype), Buffer("B", (const(N),), dtype)
    values: dict[str, Expr] = {op: Unary(op, Load(a, (v,))) for op in ("abs", "sign", "floor")}
    values["pow"] = Binary("pow", Load(a, (v,)), Load(b, (v,)))
    values["div"] = Binary("div", Load(a, (v,)), Load(b, (v,)))
    if dtype.name != "int64":
        values["neg"] = Unary("neg", Load(a, (v,)))
    func, outputs = func_of(values, (a, b), v)
    x, y = values_of(dtype, False), RNG.integers(0, 9, N).astype(dtype.numpy)
    y[:3] = [0, 1, 100]
    actual = Native(func, target=target)({"A": x, "B": y, **{o.name: np.empty(N, o.dtype.numpy) for o in outputs}})
    for name, kind in itertools.product(values, KINDS):
        if name == "pow":
            expected = apply_binary("pow", x, y)
        elif name == "div":
            quotients = [abs(int(p)) // int(q) * (-1 if p < 0 else 1) if q else 0 for p, q in zip(x, y, strict=True)]
            expected = np.array(quotients, np.uint64 if dtype.name == "uint64" else np.int64).astype(dtype.numpy)
        else:
            expected = apply_unary(name, x)
        np.testing.assert_array_equal(actual[f"{name}_{kind}"], expected, err_msg=f"{name} {kind}")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", DTYPES.values(), ids=str)
def test_casts(source: DType, target: str) -> None:
    v = Var("v")
    a = Buffer("A", (const(N),), source)
    others = [d for d in DTYPES.values() if d != source]
    func, outputs = func_of({f"to_{d}": Cast(d, Load(a, (v,))) for d in others}, (a,), v)
    x = values_of(source, False)
    actual = Native(func, target=target)({"A": x, **{o.name: np.empty(N, o.dtype.numpy) for o in outputs}})
    for d, kind in itertools.product(others, KINDS):
        result, expected = actual[f"to_{d}_{kind}"], apply_cast(d, x)
        if source.is_float and d.is_int:
            # out of range, integers saturate, and NaN gives 0; undefined in C
            wide = np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
            low, high = np.iinfo(d.numpy).min, np.iinfo(d.numpy).max
            expected = np.array([int(min(max(e, low), high)) if np.isfinite(e) else (high if e > 0 else low)
                                 for e in wide]).astype(d.numpy) if d.bits < 64 else None  # fmt: skip
            if expected is None:
                keep = np.abs(wide) < 2**31 if d.kind == "i" else (wide >= 0) & (wide < 2**31)
                result, expected = result[keep], wide[keep].astype(d.numpy)
        compare(result, expected, d, f"{source} to {d} {kind}", True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_patterns_round_trip(dtype: str) -> None:
    kind = DTYPES[dtype]
    size, v = 1 << 16, Var("v")
    a, b = Buffer("A", (const(size),), kind), Buffer("B", (const(size),), DTYPES["float32"])
    c = Buffer("C", (const(size),), kind)

    def loop(name: str, out: Buffer, value: Expr) -> For:
        i = Var(f"i{name}")
        block = Block(name, (BlockIter(v, const(size), IterKind.SPATIAL, i),), Store(out, (v,), value))
        return For(i, const(size), LoopKind.SERIAL, block)

    body = seq(loop("up", b, Cast(DTYPES["float32"], Load(a, (v,)))), loop("down", c, Cast(kind, Load(b, (v,)))))
    bits = np.arange(size, dtype=np.uint16).view(kind.numpy)
    for target in TARGETS:
        actual = Native(Func("convert", (a, b, c), (), (), body), target=target)(
            {"A": bits, "B": np.empty(size, np.float32), "C": np.empty(size, kind.numpy)}
        )
        np.testing.assert_array_equal(actual["B"], bits.astype(np.float32))
        same = actual["C"].view(np.uint16) == bits.view(np.uint16)
        assert np.all(same | np.isnan(bits.astype(np.float32)))
        assert np.all(np.isnan(actual["C"][np.isnan(bits.astype(np.float32))].astype(np.float32)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_16_bit_rounding_is_to_nearest_even(name: str, target: str) -> None:
    kind = DTYPES[name]
    patterns = RNG.integers(0, 1 << 32, 40000, dtype=np.uint32).view(np.float32)
    x = np.concatenate([patterns, (RNG.standard_normal(20000) * 10.0 ** RNG.integers(-9, 6, 20000)).astype(np.float32)])
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64) * (1 + RNG.standard_normal(x.size) * 1e-9)
    size, v, w = const(x.size), Var("v"), Var("w")
    a, b = Buffer("A", (size,), DTYPES["float32"]), Buffer("B", (size,), DTYPES["float64"])
    c, d = Buffer("C", (size,), kind), Buffer("D", (size,), kind)
    i, j = Var("i"), Var("j")
    first = Block("C", (BlockIter(v, size, IterKind.SPATIAL, i),), Store(c, (v,), Cast(kind, Load(a, (v,)))))
    second = Block("D", (BlockIter(w, size, IterKind.SPATIAL, j),), Store(d, (w,), Cast(kind, Load(b, (w,)))))
    body = seq(For(i, size, LoopKind.SERIAL, first), For(j, size, LoopKind.SERIAL, second))
    func = Func("narrow", (a, b, c, d), (), (), body)
    empty = np.empty(x.size, kind.numpy)
    actual = Native(func, target=target)({"A": x, "B": wide, "C": empty, "D": empty})
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(actual["C"].astype(np.float64), x.astype(kind.numpy).astype(np.float64))
        if name == "float16":  # ml_dtypes rounds twice on the way from float64
            np.testing.assert_array_equal(actual["D"].astype(np.float64), wide.astype(kind.numpy).astype(np.float64))
