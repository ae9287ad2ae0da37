"""Small models through the whole pipeline, against ONNX's reference evaluator and a double-precision evaluation."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from tests.driver import models

import tilewright
from tilewright.codegen.segment import KernelCall
from tilewright.driver.compile import make_compilation
from tilewright.driver.diagnostics.verification import compare_layers, compare_outputs
from tilewright.driver.options import CompileOptions
from tilewright.errors import FallbackWarning, OptionError, ShapeError, TargetError
from tilewright.expr.evaluate import Environment, evaluate_expr

pytestmark = pytest.mark.usefixtures("reuse_code")


def reference(model, feeds):
    evaluator = ReferenceEvaluator(model)
    return dict(zip(evaluator.output_names, evaluator.run(None, feeds), strict=True))


def check(model, executable, feeds, tolerance=2e-5):
    actual, expected = executable.run(feeds), reference(model, feeds)
    assert list(actual) == list(expected)
    for name, right in expected.items():
        result = actual[name]
        assert result.shape == right.shape, name
        assert result.dtype == right.dtype, name
        np.testing.assert_allclose(result, right, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(right).max())))


def feeds(seed, *shape, name="x"):
    return {name: np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}


def test_one_executable_serves_every_batch():
    model = models.mlp()
    executable = tilewright.compile(model, shapes={"batch": "1..64"}, threads=2)
    for batch in (1, 2, 7, 8, 33, 64):
        check(model, executable, feeds(batch, batch, 24))
    assert str(executable.inputs[0]) == "float32 [batch, 24]"
    assert executable.outputs[0].dims == ("batch", 10)


@pytest.mark.parametrize("sizes", [(1, 8, 8), (2, 9, 31), (3, 40, 17), (1, 64, 96)])
def test_one_executable_serves_every_picture(sizes, convnet_executable):
    n, h, w = sizes
    check(models.convnet(), convnet_executable, feeds(h * w, n, 3, h, w))


@pytest.fixture(scope="module")
def convnet_executable():
    return tilewright.compile(models.convnet(), threads=2)


def test_fixed_sizes():
    model = models.convnet()
    executable = tilewright.compile(model, shapes={"n": 2, "h": 20, "w": 28}, threads=1)
    check(model, executable, feeds(5, 2, 3, 20, 28))
    with pytest.raises(tilewright.TilewrightError, match=r"\[2, 3, 20, 28\]"):
        executable(np.zeros((1, 3, 20, 28), np.float32))


def test_a_saved_model_computes_the_same_bits(tmp_path, convnet_executable):
    path = tmp_path / "m.tw"
    convnet_executable.save(path)
    loaded = tilewright.load(path, threads=2)
    x = feeds(1, 2, 3, 33, 47)
    for a, b in zip(convnet_executable.run(x).values(), loaded.run(x).values(), strict=True):
        assert a.tobytes() == b.tobytes()


def test_eight_threads_get_the_same_bits(convnet_executable):
    inputs = [feeds(k, 1 + k % 3, 3, 16 + 5 * k, 40 - 2 * k) for k in range(8)]
    expected = [convnet_executable.run(x)["p"].tobytes() for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            actual = list(pool.map(lambda x: convnet_executable.run(x)["p"].tobytes(), inputs))
            assert actual == expected


def test_the_number_of_threads_does_not_change_the_bits():
    x = feeds(3, 2, 3, 50, 60)
    one, four = (tilewright.compile(models.convnet(), threads=n, cache=False).run(x) for n in (1, 4))
    assert one["p"].tobytes() == four["p"].tobytes()
    assert one["y"].tobytes() == four["y"].tobytes()


_ANOTHER_PROCESS = """
import hashlib, sys
from tests.driver import models
from tilewright.codegen.segment import KernelCall
from tilewright.driver.compile import make_compilation
artifact = make_compilation(models.convnet()).artifact()
digest = hashlib.sha256(artifact.code)
for name, array in artifact.weights.items():
    digest.update(name.encode())
    digest.update(array.tobytes())
digest.update(repr(artifact.manifest).encode())
print(digest.hexdigest())
"""


def test_code_does_not_depend_on_hash_seed_or_threads():
    """Whatever their order of hashes and their threads."""

    def digest(seed: str, threads: str) -> str:
        settings = {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": threads, "TILEWRIGHT_NUM_THREADS": threads}
        command = [sys.executable, "-c", _ANOTHER_PROCESS]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, env={**settings, "PATH": "", "HOME": "/nowhere"}
        ).stdout

    assert digest("1", "1") == digest("2", "3")


def test_outputs_that_are_inputs_constants_or_views():
    model = models.passing_on()
    executable = tilewright.compile(model)
    x = feeds(1, 5, 4)
    check(model, executable, x)
    outputs = executable.run(x)
    assert not any(np.shares_memory(a, x["x"]) for a in outputs.values())
    assert not np.shares_memory(outputs["e"], outputs["again"])


def test_a_fallback_between_native_code(tmp_path):
    model = models.with_fallback()
    with pytest.warns(FallbackWarning, match=r"1 node .*ONNX's reference evaluator.*normalizer \(Normalizer\)"):
        executable = tilewright.compile(model)
    for n in (1, 5):
        check(model, executable, feeds(n, n, 9, name="in put"))
    executable.save(tmp_path / "m.tw")
    check(model, tilewright.load(tmp_path / "m.tw"), feeds(9, 4, 9, name="in put"))


def test_only_fallbacks():
    nodes = [models.normalizer("x", "y", "normalizer")]
    model = models.model(nodes, [models.value("x", [2, 9])], [models.value("y", [2, 9])])
    with pytest.warns(FallbackWarning):
        executable = tilewright.compile(model)
    check(model, executable, feeds(1, 2, 9))


def test_a_size_outside_of_its_range():
    executable = tilewright.compile(models.mlp(), shapes={"batch": "1..64"})
    with pytest.raises(ShapeError, match=r"batch.*1\.\.64|1\.\.64.*batch"):
        executable(np.ones((65, 24), np.float32))


def test_constraints_between_inputs_are_checked():
    nodes = [models.helper.make_node("Add", ["a", "b"], ["c"], name="sum")]
    inputs = [models.value("a", ["m", 3]), models.value("b", ["n", 3])]
    executable = tilewright.compile(models.model(nodes, inputs, [models.value("c", ["m", 3])]), shapes={"n": "2..9"})
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    np.testing.assert_array_equal(executable(a=x, b=x), x + x)
    with pytest.raises(ShapeError):
        executable(a=x, b=x[:3])


def test_an_unknown_optimizer():
    with pytest.raises(OptionError, match="there is no optimizer 'magic'"):
        tilewright.compile(models.mlp(), optimizer="magic")


def test_an_unknown_target():
    with pytest.raises(TargetError, match="unknown target"):
        tilewright.compile(models.mlp(), target="sparc")


def test_a_target_that_is_no_name():
    with pytest.raises(OptionError, match="expected a name or a Target, got int"):
        tilewright.compile(models.mlp(), target=7)  # pyright: ignore[reportArgumentType]


def test_another_target_can_be_compiled_for_but_not_run(tmp_path):
    other = "aarch64" if tilewright.Target.host().arch == "x86_64" else "x86-64"
    executable = tilewright.compile(models.mlp(), target=other)
    executable.save(tmp_path / "m.tw")
    with pytest.raises(TargetError):
        executable(np.ones((2, 24), np.float32))


@pytest.mark.parametrize(
    ("level", "make"),
    [("x86-64", models.convnet), ("x86-64-v2", models.small_convnet), ("x86-64-v3", models.convnet)],
)
def test_older_targets(level, make):
    target = tilewright.Target.parse(level)
    if not target.runs_here:
        pytest.skip(f"this machine can't run {level}")
    size = (16, 16) if make is models.small_convnet else (21, 38)
    check(make(), tilewright.compile(make(), target=level, threads=2), feeds(4, 2, 3, *size))


def test_progress_is_reported():
    events = []
    tilewright.compile(models.mlp(), cache=False, progress=lambda *event: events.append(event))
    stages = list(dict.fromkeys(what.partition(": ")[0] for what, _, _ in events))
    kernels = [what for what, _, _ in events if what.startswith("kernels")]
    assert kernels[0].startswith("kernels: dense1 (Gemm) + relu1 (Relu)")
    assert stages == ["model", "estimates", "kernels", "weights and memory", "machine code"]
    assert all(0 <= done <= total for _, done, total in events)


def test_equal_kernels_share_a_function():
    nodes, last = [], "x"
    for k in range(4):
        nodes.append(models.helper.make_node("MatMul", [last, f"w{k}"], [f"m{k}"], name=f"matmul{k}"))
        nodes.append(models.helper.make_node("Relu", [f"m{k}"], [f"r{k}"], name=f"relu{k}"))
        last = f"r{k}"
    constants = {f"w{k}": models.array(k, 16, 16, scale=0.3) for k in range(4)}
    model = models.model(nodes, [models.value("x", ["n", 16])], [models.value(last, ["n", 16])], constants)
    compilation = make_compilation(model, CompileOptions(fusion="unfused"))
    assert len(compilation.kernels) == 1
    assert len(compilation.units) == 4
    check(model, tilewright.compile(model), feeds(2, 9, 16))


def test_equal_constants_are_stored_once():
    nodes = [
        models.helper.make_node("MatMul", ["x", "a"], ["m"]),
        models.helper.make_node("MatMul", ["m", "b"], ["y"]),
    ]
    constants = {"a": models.array(1, 64, 64), "b": models.array(1, 64, 64)}
    model = models.model(nodes, [models.value("x", [32, 64])], [models.value("y", [32, 64])], constants)
    weights = make_compilation(model).weights
    assert sum(w.nbytes for w in weights.values()) < 1.5 * 64 * 64 * 4


def test_errors_of_layers_against_double_precision():
    compilation = make_compilation(models.small_convnet())
    x = feeds(8, 2, 3, 16, 16)
    outputs = tilewright.Executable(compilation.artifact()).run(x)
    comparisons = compare_outputs(compilation, x, outputs, None)
    assert [c.name for c in comparisons] == ["y", "p"]
    assert all(c.passed and c.error < 1e-5 for c in comparisons)
    wrong = {**outputs, "y": outputs["y"] + 0.1}
    assert [c.passed for c in compare_outputs(compilation, x, wrong, None)] == [False, True]
    layers = compare_layers(make_compilation(models.small_convnet(), expose_intermediates=True), x, None)
    assert len(layers) >= 4
    assert all(c.error < 1e-5 for c in layers)


def test_a_loaded_model_needs_no_compiler(tmp_path):
    tilewright.compile(models.mlp()).save(tmp_path / "m.tw")
    code = (
        "import sys, numpy, tilewright; m = tilewright.load(sys.argv[1]); m(numpy.ones((3, 24), 'float32'));"
        "print([n for n in ('expr', 'loops', 'codegen', 'graph', 'frontend') if 'tilewright.' + n in sys.modules],"
        "'onnx' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "m.tw")]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert output.strip() == "[] False"


def test_the_public_names_exist():
    for name in tilewright.__all__:
        assert getattr(tilewright, name) is not None
    assert "compile" in dir(tilewright)
    with pytest.raises(AttributeError, match="module 'tilewright' has no attribute 'nothing'"):
        _ = tilewright.nothing


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_memory_does_not_grow_over_many_calls():
    executable = tilewright.compile(models.convnet(), threads=1)
    generator = np.random.default_rng(0)
    sizes = generator.integers([1, 8, 8], [4, 24, 24], (700, 3))
    batch = generator.standard_normal((3, 3, 23, 23)).astype(np.float32)

    def calls(count):
        for k in range(count):
            n, h, w = sizes[k % len(sizes)]
            executable(np.ascontiguousarray(batch[:n, :, :h, :w]))

    calls(2000)
    before = _resident()
    calls(8000)
    assert _resident() - before < 4 << 20


def test_parallel_grains_grow_with_the_batch():
    compilation = make_compilation(models.mlp())
    (batch,) = compilation.program.symbols
    calls = [c for c in compilation.segments[0].segment.calls if isinstance(c, KernelCall)]
    grains = [c.parallel_grains for c in calls if c.parallel_grains is not None]
    assert grains
    for expression in grains:
        few, many = (int(evaluate_expr(expression, Environment({batch: np.int64(n)}, {}))) for n in (1, 100_000))
        assert few < 2
        assert many > 4


@pytest.mark.parametrize("picks", [[1, 2], [-1, 2, 0], [3, 3, 3, 3]])
def test_elements_at_known_indices(picks):
    node = helper.make_node("Gather", ["x", "indices"], ["y"], axis=1)
    inputs, outputs = [models.value("x", ["n", 4, 5])], [models.value("y", ["n", len(picks), 5])]
    model = models.model([node], inputs, outputs, {"indices": np.array(picks, np.int64)})
    check(model, tilewright.compile(model, threads=1), feeds(3, 3, 4, 5))
