"""The front door for kernel engineers: define, schedule, check, build, call; and answers to what can't be done."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.driver.kernel_build.oracle import CheckResult
from tilewright.layout.rewrite_stage import rewrite_stage
from tilewright.loops.parser import parse
from tilewright.schedule.step import replay

RNG = np.random.default_rng(7)


def gemm(name: str = "C") -> tuple[tw.Tensor, tw.Tensor, tw.Tensor]:
    """C = A B with a symbolic number of rows."""
    n = tw.symbol("n", 1, 512)
    a, b = tw.placeholder((n, 48), "float32", "A"), tw.placeholder((48, 40), "float32", "B")
    k = tw.reduce_axis(48, "k")
    return a, b, tw.compute((n, 40), lambda i, j: tw.sum(a[i, k] * b[k, j], k), name)


def scheduled() -> tw.Workbench:
    """A GEMM with tiles, vectors, threads and an accumulator in registers."""
    s = tw.create_schedule(gemm()[2])
    local = s.cache_write("C")
    io, jo, _, ji = s.tile(s.loops("C_write"), (4, 16))
    s.compute_at("C", jo)
    rows, lanes, k = s.loops("C")[-3:]
    s.reorder((k, rows, lanes))
    s.set_scope(local, "register")
    s.decompose_reduction("C", k)
    for loop in (lanes, ji, s.loops("C_init")[-1]):
        s.vectorize(loop)
    for loop in (rows, s.loops("C_write")[-2], s.loops("C_init")[-2]):
        s.unroll(loop)
    s.parallel(io)
    return s


def arrays(n: int = 13) -> tuple[np.ndarray, np.ndarray]:
    return RNG.standard_normal((n, 48)).astype(np.float32), RNG.standard_normal((48, 40)).astype(np.float32)


def test_kernel_from_definition_to_result() -> None:
    a, b = arrays()
    s = scheduled()
    kernel = s.build(threads=2)
    np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(kernel(B=b, A=a), kernel(a, b))
    np.testing.assert_array_equal(kernel(a, B=b), kernel(a, b))
    assert repr(kernel) == (
        f"<NativeKernel C (A: float32[n, 48], B: float32[48, 40]) -> (C: float32[n, 40]), {kernel.target}, 2 threads>"
    )


def test_names_are_those_of_the_definition(golden: Callable[[str], None]) -> None:
    s = tw.create_schedule(gemm()[2])
    assert s.blocks == ("C",)
    assert s.loops() == ("i", "j", "k")
    assert str(s) == s.show() == s.inspect()
    golden(s.show())


def test_the_trace_of_a_workbench_replays() -> None:
    s = scheduled()
    assert replay(s.origin, s.trace) == s.func
    again = tw.create_schedule(gemm()[2])
    again.apply(s.trace)
    assert again.func == s.func


def test_one_kernel_serves_all_sizes() -> None:
    kernel = scheduled().build(threads=1)
    for n in (1, 2, 7, 16, 33, 512):
        a, b = arrays(n)
        for _ in range(2):
            np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-4, atol=1e-4)


def test_out_receives_the_result() -> None:
    a, b = arrays()
    kernel = scheduled().build()
    out = np.full((13, 40), np.nan, np.float32)
    assert kernel(a, b, out=out) is out
    np.testing.assert_array_equal(out, kernel(a, b))


def test_several_outputs_and_internal_memory() -> None:
    x = tw.placeholder((9, 8), name="X")
    k = tw.reduce_axis(8, "k")
    m = tw.compute((9,), lambda i: tw.max(x[i, k], k), "M")
    e = tw.compute((9, 8), lambda i, j: tw.exp(x[i, j] - m[i]), "E")
    total = tw.compute((9,), lambda i: tw.sum(e[i, k], k), "S")
    y = tw.compute((9, 8), lambda i, j: e[i, j] / total[i], "Y")
    s = tw.create_schedule(m, y, name="softmax")
    assert s.buffers == ("E", "S")
    kernel = s.build()
    data = RNG.standard_normal((9, 8)).astype(np.float32)
    largest, answer = kernel(data)
    np.testing.assert_array_equal(largest, data.max(1))
    expected = np.exp(data - data.max(1, keepdims=True))
    np.testing.assert_allclose(answer, expected / expected.sum(1, keepdims=True), rtol=1e-6)
    out = (np.empty(9, np.float32), np.empty((9, 8), np.float32))
    assert kernel(data, out=out)[1] is out[1]
    np.testing.assert_array_equal(out[1], answer)
    np.testing.assert_array_equal(s.interpret(data)[0], largest)


def test_inputs_in_the_callers_order() -> None:
    a, b, c = gemm()
    unused = tw.placeholder((3,), name="U")
    s = tw.create_schedule(c, inputs=(b, unused, a))
    assert [p.name for p in s.func.params] == ["B", "U", "A", "C"]
    x, y = arrays()
    np.testing.assert_allclose(s.build()(y, np.zeros(3, np.float32), x), x @ y, rtol=1e-4, atol=1e-5)


def test_free_symbols_are_passed_by_name() -> None:
    n, m = tw.symbol("n", 0, 20), tw.symbol("m", 1, 5)
    x = tw.placeholder((m * 2,), name="X")
    y = tw.compute((n, m), lambda i, j: x[j * 2] + tw.cast(i, "float32"), "Y")
    s = tw.create_schedule(y)
    data = np.arange(6, dtype=np.float32)
    kernel = s.build()
    np.testing.assert_array_equal(kernel(data, n=4, m=3), np.arange(4)[:, None] + data[::2])
    assert kernel(data, n=0, m=3).shape == (0, 3)
    np.testing.assert_array_equal(s.interpret(data, n=4, m=3), kernel(data, n=4, m=3))
    assert s.check().sizes[0] == {"m": 1, "n": 0}
    for sizes, message in (
        ({"n": 4}, "[feed] size 'm': no input determines it, it is missing; pass m=<integer>"),
        ({"n": 4, "m": 2.0}, "[feed] size 'm': no input determines it, got 2.0; pass m=<integer>"),
        ({"n": 21, "m": 3}, "[shape] size 'n': expected a size within 0..20, got 21"),
        ({"n": 4, "m": 2}, "[feed] input 'X': expected shape [4] = [m * 2] for m=2, n=4, got [6]"),
    ):
        with pytest.raises(tw.TilewrightError) as e:
            kernel(data, **sizes)
        assert _sorted(str(e.value)) == _sorted(message)


def _sorted(text: str) -> list[str]:
    """Words in any order: sizes are listed in the order of the kernel's symbols."""
    return sorted(text.replace(",", " ").split())


def test_padding_by_select() -> None:
    w = tw.symbol("w", 1, 64)
    x, f = tw.placeholder((w,), name="X"), tw.placeholder((3,), name="F")
    r = tw.reduce_axis(3, "r")

    def at(i: Any) -> Any:
        return tw.select((i >= 0) & (i < w), x[i], 0.0)

    s = tw.create_schedule(tw.compute((w,), lambda i: tw.sum(at(i + r - 1) * f[r], r), "Y"))
    assert s.split("i", 8, tail="guard") == ("i_o", "i_i")
    s.check()
    data, taps = RNG.standard_normal(20).astype(np.float32), RNG.standard_normal(3).astype(np.float32)
    expected = np.convolve(data, taps[::-1], "same")
    np.testing.assert_allclose(s.build()(data, taps), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "uint8", "int32", "int64", "bool"])
def test_types(dtype: str) -> None:
    x = tw.placeholder((20,), dtype, "X")
    s = tw.create_schedule(tw.compute((20,), lambda i: x[19 - i], "Y"))
    assert s.check().error == 0.0
    data = np.arange(20).astype(s.func.params[0].dtype.numpy)
    np.testing.assert_array_equal(s.build()(data), data[::-1])


def test_arrays_of_others() -> None:
    a, b = arrays()

    class Foreign:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **given: Any) -> Any:
            return self.array.__dlpack__(**given)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    kernel = scheduled().build()
    np.testing.assert_array_equal(kernel(Foreign(a), b), kernel(a, b))
    np.testing.assert_array_equal(kernel(np.asfortranarray(a), b), kernel(a, b))


def test_texts(golden: Callable[[str], None]) -> None:
    s = scheduled()
    assert "define" in s.inspect("llvm")
    assert ".globl\ttw_main" in s.inspect("assembly", "x86-64-v3")
    assert "aarch64" in s.inspect("llvm", "aarch64")
    kernel = s.build()
    assert kernel.inspect() == s.show()
    assert kernel.inspect("llvm") == s.inspect("llvm")
    golden(s.show())


def test_loops_as_text_can_be_scheduled() -> None:
    s = tw.create_schedule(parse(scheduled().show()))
    a, b = arrays()
    np.testing.assert_allclose(s.build()(a, b), a @ b, rtol=1e-4, atol=1e-5)


def test_computations_with_layouts_can_be_scheduled() -> None:
    _, _, c = gemm()
    layout = tw.Layout.of((48, 40)).split(1, (5, 8)).reorder((1, 0, 2))
    assert c.stage is not None
    s = tw.create_schedule(rewrite_stage(c.stage, {"B": layout}))
    assert tw.create_schedule(c, layouts={"B": layout}).func == s.func
    s.check()
    x, y = arrays()
    np.testing.assert_allclose(s.build()(x, layout.transform(y)), x @ y, rtol=1e-4, atol=1e-5)


def test_attached_tensors_are_no_parameters() -> None:
    a, b = tw.placeholder((4, 6), name="A"), tw.placeholder((6,), name="b")
    c = tw.compute((4, 6), lambda i, j: a[i, j] * b[j], "C")
    layout = tw.Layout.of((4, 6)).store_at("b", (6,), 0)
    s = tw.create_schedule(c, layouts={"A": layout})
    assert [str(p) for p in s.func.params] == ["A: float32[5, 6]", "C: float32[4, 6]"]
    s.check()
    x, y = np.random.default_rng(4).random((4, 6), np.float32), np.random.default_rng(5).random(6, np.float32)
    np.testing.assert_array_equal(s.build()(layout.transform(x, {"b": y})), x * y)
    # Where the output carries it, the kernel writes it there, and needs it.
    carried = tw.create_schedule(c, layouts={"C": layout})
    assert [p.name for p in carried.func.params] == ["A", "b", "C"]
    np.testing.assert_array_equal(carried.build()(x, y), layout.transform(x * y, {"b": y}))


def test_check_compares_with_the_untransformed_loops() -> None:
    s = scheduled()
    report = s.check(threads=2)
    assert len(report.sizes) == 3
    assert 0 <= report.error < 1e-5
    assert str(report).startswith("equal in 3 runs, largest error ")
    assert s.check({"n": 5}, native=False, seed=3).sizes == ({"n": 5},)
    assert s.check(inputs={"A": np.zeros((5, 48), np.float32)}) == CheckResult(({"n": 5},), 0.0)


def test_check_names_the_element_that_differs() -> None:
    s = scheduled()
    wrong = s.show().replace("= 0.0", "= 1.0", 1)
    s.func = parse(wrong)
    with pytest.raises(tw.MismatchError, match=r"^\[mismatch\] output 'C' at \[\d+, \d+\] for n=5: expected .*, got "):
        s.check({"n": 5})


def test_threads_may_call_at_once() -> None:
    kernel, inputs = scheduled().build(threads=2), arrays(100)
    expected = kernel(*inputs)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: np.array_equal(kernel(*inputs), expected), range(80)))
    assert all(results)


A, B, C = gemm()
KERNEL = tw.create_schedule(C).build(threads=1)
X, Y = arrays(5)
OUT = np.zeros((5, 40), np.float32)

REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: tw.create_schedule(), "[definition] create_schedule: no output is given"),
    (lambda: tw.create_schedule(A), "[definition] create_schedule: 'A' is an input; nothing computes it"),
    (lambda: tw.create_schedule(C, C.stage),
     "[definition] create_schedule: expected tensors or computations, got Compu"),
    (lambda: tw.create_schedule(C, C), "[definition] create_schedule: output 'C' is named twice; name it once"),
    (lambda: tw.create_schedule(tw.compute((tw.symbol("n", 1, 9),), lambda i: A[0, i], "D"), C),
     "[definition] create_schedule: two symbols of different ranges are both called 'n'; make the symbol once"),
    (lambda: tw.create_schedule(C, layouts={"B": (1, 0)}),
     "[definition] create_schedule, layouts: 'B': expected a Layout, got (1, 0); write Layout.of(shape) and its"),
    (lambda: tw.create_schedule(C, inputs=(A,)), "[definition] create_schedule, inputs: input 'B' is not listed"),
    (lambda: tw.create_schedule(C, layouts={"D": tw.Layout.of((3,))}),
     "[definition] create_schedule, layouts: there is no tensor 'D'; there are A, B, C"),
    (lambda: tw.create_schedule(C, layouts={"B": tw.Layout.of((3,))}),
     "[layout] buffer 'B': expected a layout of shape [48, 40], got [3]"),
    (lambda: tw.create_schedule(tw.compute((tw.symbol("D"),), lambda i: A[0, 0], "D")),
     "[definition] create_schedule: a tensor and a symbol are both called 'D'"),
    (lambda: tw.create_schedule(KERNEL.func, name="f"),
     "[definition] create_schedule: loops have inputs, layouts and a name already"),
    (lambda: tw.create_schedule(C, name="a b"), "[definition] create_schedule, name: 'a b' is no C identifier"),
    (lambda: tw.create_schedule(tw.compute((3,), lambda i: A[i + 1, 0], "D")),
     "[verify] func 'D', block 'D': index v_i + 1 of buffer 'A' (read, dimension 0) is not proved < n"),
    (lambda: tw.create_schedule(C).split("l", 4), "[schedule] C: there is no loop 'l'; loops are i, j, k"),
    (lambda: scheduled().parallel("C_write_0_o"), "; did you mean 'C_write_l0_o'?"),
    (lambda: tw.create_schedule(C).split("i", 0), "[schedule] split of loop 'i': factor must be at least 1, got 0"),
    (lambda: tw.create_schedule(C).vectorize("i"),
     "[schedule] vectorize of loop 'i': the extent n is not a literal; spl"),
    (lambda: tw.create_schedule(C).parallel("k"), "[schedule] parallel of loop 'k': "),
    (lambda: tw.create_schedule(C).set_scope("C", "l2"), "set_scope, argument 'scope': expected one of memory, "),
    (lambda: tw.create_schedule(C).build("z80"), "[target] target 'z80': unknown target, expected one of host, "),
    (lambda: tw.create_schedule(C).build("aarch64"), "[target] target 'aarch64': code for aarch64, this machine is"),
    (lambda: tw.create_schedule(C).build(3), "[option] target: expected a name or a Target, got int"),
    (lambda: tw.create_schedule(C).build(threads=0),
     "[option] argument 'threads': expected a number of threads, got 0"),
    (lambda: tw.create_schedule(C).inspect("ptx"),
     "[option] inspect: there is no level 'ptx'; use loops, lowered, llvm or assem"),
    (lambda: tw.create_schedule(C).check(inputs={"D": X}), "[option] inputs: there is no input 'D'; there are A, B"),
    (
        lambda: tw.create_schedule(C).check(inputs={"A": X.astype(np.float64)}),
        "[feed] input 'A': expected float32 [n, 48], got float64 [5, 48]",
    ),
    (
        lambda: tw.create_schedule(C).check({"n": 4}, inputs={"A": X}),
        "[option] sizes: n is 4, but the inputs have 5",
    ),
    (lambda: tw.create_schedule(C).interpret(X, n=3),
     "[feed] call: 2 problems\n  [feed] input 'n': there is none; there are 'A', 'B'"),
    (lambda: KERNEL(X), "[feed] input 'B': missing, expected float32 [48, 40]"),
    (lambda: KERNEL(X, Y, X), "[feed] kernel 'C': expected 2 inputs, got 3; its inputs are A, B; outputs go to `out=`"),
    (lambda: KERNEL(X, Y, A=X), "[feed] input 'A': given both by position and by name"),
    (lambda: KERNEL(X, Y, D=X), "[feed] input 'D': there is none; there are 'A', 'B'"),
    (lambda: KERNEL(X, Y.astype(np.float64)),
     "[feed] input 'B': expected float32 [48, 40], got float64 [48, 40]; conve"),
    (lambda: KERNEL(X, Y[:7]), "[feed] input 'B': expected shape [48, 40], got [7, 40]"),
    (lambda: KERNEL(X[0], Y), "[feed] input 'A': expected shape [n, 48], got [48]"),
    (lambda: KERNEL(X, "text"), "[feed] input 'B': expected float32 [48, 40], got a str that NumPy can't read ("),
    (lambda: KERNEL(np.zeros((0, 48), np.float32), Y),
     "[shape] input 'A' axis 0: expected a size for 'n' within 1..512"),
    (lambda: KERNEL(np.zeros((513, 48), np.float32), Y),
     "[shape] input 'A' axis 0: expected a size for 'n' within 1..5"),
    (lambda: KERNEL(B=Y[0], D=1), "[feed] call: 2 problems\n  [feed] input 'D': there is none"),
    (lambda: KERNEL(X, Y, out=[OUT, OUT]), "[feed] out: expected 1 array, got 2"),
    (lambda: KERNEL(X, Y, out=OUT[:3]), "[feed] out, output 'C': expected float32 [5, 40], got float32 [3, 40]"),
    (lambda: KERNEL(X, Y, out=OUT.astype(np.float64)),
     "[feed] out, output 'C': expected float32 [5, 40], got float64 ["),
    (lambda: KERNEL(X, Y, out=[[0.0]]), "[feed] out, output 'C': expected a NumPy array float32 [5, 40], got list"),
    (lambda: KERNEL(X, Y, out=np.empty((40, 5), np.float32).T),
     "[feed] out, output 'C': expected a contiguous, aligned"),
    (lambda: KERNEL(X, Y, out=_read_only()),
     "[feed] out, output 'C': expected a contiguous, aligned and writeable array"),
    (lambda: _aliased(), "[feed] out, output 'Z': it shares memory with an input or another output"),
]  # fmt: skip


def _read_only() -> np.ndarray:
    array = np.empty((5, 40), np.float32)
    array.flags.writeable = False
    return array


def _aliased() -> object:
    x = tw.placeholder((8,), name="X")
    data = np.zeros(8, np.float32)
    return tw.create_schedule(tw.compute((8,), lambda i: x[7 - i], "Z")).build()(data, out=data)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_floats_saturate_as_integers(dtype: str) -> None:
    ends = np.iinfo(dtype)
    data = np.array([np.nan, np.inf, -np.inf, 2.9, -2.9, 1e30, -1e30, float(ends.max), float(ends.min)], np.float32)
    x = tw.placeholder((9,), name="X")
    s = tw.create_schedule(tw.compute((9,), lambda i: tw.cast(x[i], dtype), "Z"))
    expected = [0, ends.max, ends.min, 2, max(-2, ends.min), ends.max, ends.min, ends.max, ends.min]
    assert s.build()(data).tolist() == expected == s.interpret(data).tolist()
    s.check()


def test_numbers_on_the_left_of_quotients() -> None:
    n = tw.symbol("n", 1, 64)
    x = tw.placeholder((64,), name="X")
    s = tw.create_schedule(tw.compute((100 // n,), lambda i: x[100 % n] + x[i % 3], "Z"))
    data = RNG.standard_normal(64).astype(np.float32)
    assert np.array_equal(s.build()(data, n=7), data[100 % 7] + data[np.arange(14) % 3])


@pytest.mark.parametrize(("act", "message"), REFUSED)
def test_invalid_calls_raise_errors(act: Callable[[], object], message: str) -> None:
    with pytest.raises(tw.TilewrightError) as e:
        act()
    assert message in str(e.value)
