"""Kernels of several programs: each size runs the one that its selector names, and all give the same results."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.driver.models import array, model, value

import tilewright
from tilewright.cli.main import main
from tilewright.driver.compilation import Compilation
from tilewright.driver.compile import make_compilation
from tilewright.driver.options import CompileOptions
from tilewright.errors import OptionError
from tilewright.expr.nodes import Var
from tilewright.lower.kernel_variants import KernelVariants
from tilewright.machine.shipped import machine_named
from tilewright.tile.shape_samples import value_of

pytestmark = pytest.mark.usefixtures("reuse_code")

K, N = 512, 512
SIDE = 512


def dense(rows: int | str = "rows") -> onnx.ModelProto:
    """A product with constant weights, and an activation."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="dense"),
        helper.make_node("Relu", ["p"], ["y"], name="relu"),
    ]
    return model(nodes, [value("x", [rows, K])], [value("y", [rows, N])], {"w": array(5, K, N)}, name="dense")


def product_of_inputs() -> onnx.ModelProto:
    """A product of two inputs, whose programs pack operands while they run."""
    nodes = [helper.make_node("MatMul", ["x", "z"], ["y"], name="product")]
    return model(
        nodes, [value("x", ["m", SIDE]), value("z", [SIDE, SIDE])], [value("y", ["m", SIDE])], {}, name="product"
    )


def pointwise() -> onnx.ModelProto:
    """A 1x1 convolution of a picture of any size, padded by nothing, with an activation."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Sigmoid", ["c"], ["y"], name="sigmoid"),
    ]
    weights = {"w": array(6, 256, 128, 1, 1)}
    return model(nodes, [value("x", [1, 128, "h", "w_"])], [value("y", [1, 256, "h", "w_"])], weights, name="pointwise")


@cache
def compiled(make: Callable[[], onnx.ModelProto], variants: int | None = None) -> Compilation:
    return make_compilation(make(), CompileOptions(machine="zen5", target="x86-64-v4", variants=variants))


def code_of(compilation: Compilation) -> KernelVariants:
    (code,) = [k.func for k in compilation.kernels if isinstance(k.func, KernelVariants)]
    return code


def test_several_programs_serve_a_range() -> None:
    code = code_of(compiled(dense))
    (rows,) = code.symbols
    chosen = {m: value_of(code.selector, {rows: m}) for m in range(1, 300)}
    assert set(chosen.values()) == set(range(len(code.programs)))
    assert len(code.programs) > 1


def test_at_most_as_many_programs_as_asked_for() -> None:
    assert len(code_of(compiled(product_of_inputs)).programs) > 2
    assert len(code_of(compiled(product_of_inputs, 2)).programs) == 2
    assert not any(isinstance(k.func, KernelVariants) for k in compiled(product_of_inputs, 1).kernels)


def test_static_sizes_have_one_program() -> None:
    assert not any(isinstance(k.func, KernelVariants) for k in compiled(lambda: dense(64)).kernels)


def test_weights_are_stored_once() -> None:
    several, single = compiled(dense), compiled(dense, 1)
    stored = [sum(a.nbytes for a in c.weights.values()) for c in (several, single)]
    assert stored[0] == stored[1] == K * N * 4


def test_programs_share_their_workspace() -> None:
    """The workspace is as large as that of the program that needs most, not as all together."""
    options = CompileOptions(machine=machine_named("sapphire-rapids").with_cores(2), target="x86-64-v4")
    compilation = make_compilation(pointwise(), options)
    kernel = next(k for k in compilation.kernels if sum(map(bool, k.scratch)) > 1)
    sizes: dict[Var, int] = dict.fromkeys(kernel.func.symbols, 64)
    needed = [sum(value_of(b.size, sizes) * b.dtype.bytes for b in scratch) for scratch in kernel.scratch]
    (planned,) = compilation.segments
    total = value_of(planned.memory.total, dict.fromkeys(planned.segment.symbols, 64))
    assert max(needed) <= total < sum(needed)


@pytest.mark.parametrize("threads", [1, 2])
def test_every_size_is_right_in_any_order(threads: int) -> None:
    executable = tilewright.compile(dense(), machine="zen5", threads=threads)
    weights, rng = array(5, K, N), np.random.default_rng(7)
    inputs = {m: rng.standard_normal((m, K)).astype(np.float32) for m in [*range(1, 34), 47, 100, 257]}
    first: dict[int, np.ndarray] = {}
    for m in [*inputs, *reversed(inputs)]:
        (result,) = executable.run({"x": inputs[m]}).values()
        exact = np.maximum(inputs[m].astype(np.float64) @ weights.astype(np.float64), 0.0)
        np.testing.assert_allclose(result, exact, rtol=0, atol=1e-5 * np.abs(exact).max())
        np.testing.assert_array_equal(result, first.setdefault(m, result))


def test_empty_sizes_have_a_program() -> None:
    executable = tilewright.compile(dense(), shapes={"rows": "0..16777215"}, machine="zen5")
    (result,) = executable.run({"x": np.zeros((0, K), np.float32)}).values()
    assert result.shape == (0, N)
    code = code_of(make_compilation(dense(), CompileOptions(shapes={"rows": "0..16777215"}, machine="zen5")))
    assert value_of(code.selector, dict.fromkeys(code.symbols, 0)) in range(len(code.programs))


def test_products_of_inputs_and_pictures_of_every_size_are_right() -> None:
    product, picture = (tilewright.compile(p, machine="zen5") for p in (product_of_inputs(), pointwise()))
    rng, weights = np.random.default_rng(8), array(6, 256, 128, 1, 1)[:, :, 0, 0].astype(np.float64)
    for m in [1, 2, 3, 5, 8, 17, 33, 130]:
        x, z = (rng.standard_normal((side, SIDE)).astype(np.float32) for side in (m, SIDE))
        (result,) = product.run({"x": x, "z": z}).values()
        np.testing.assert_allclose(result, x.astype(np.float64) @ z.astype(np.float64), rtol=0, atol=2e-4)
    for h, w in [(1, 1), (1, 50), (50, 1), (7, 9), (32, 32), (61, 45)]:
        x = rng.standard_normal((1, 128, h, w)).astype(np.float32)
        (result,) = picture.run({"x": x}).values()
        exact = 1 / (1 + np.exp(-np.einsum("oc,bchw->bohw", weights, x.astype(np.float64))))
        np.testing.assert_allclose(result, exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("variants", [0, -1, 65, True])
def test_impossible_numbers_of_variants_are_refused(variants: int) -> None:
    with pytest.raises(OptionError, match="expected 1 to 64"):
        make_compilation(dense(), CompileOptions(variants=variants))


@pytest.mark.parametrize("optimizer", ["roller", "rule"])
def test_other_optimizers_refuse_the_option(optimizer: str) -> None:
    with pytest.raises(OptionError, match="one program of every kernel"):
        make_compilation(dense(), CompileOptions(optimizer=optimizer, variants=2))


def test_inspect_shows_which_size_gets_which_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dense.onnx"
    onnx.save(dense(), str(path))
    assert main(["inspect", str(path), "--variants", "--machine", "zen5", "--target", "x86-64-v4"]) == 0
    text = capsys.readouterr().out
    code = code_of(compiled(dense))
    assert f"{len(code.programs)} programs, chosen by the sizes of a call" in text
    assert "these programs: geometric mean" in text
    assert main(["inspect", str(path), "--variants", "--max-variants", "1", "--machine", "zen5"]) == 0
    assert "one program: more would not be faster" in capsys.readouterr().out


def test_the_artifact_says_how_many_were_allowed() -> None:
    assert compiled(dense).manifest.build.variants == 8
    assert compiled(dense, 3).manifest.build.variants == 3
