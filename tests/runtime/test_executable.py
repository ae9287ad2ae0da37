"""Executables: results, feeds of every kind, threads, memory, several steps."""

import gc
import resource
import threading

import numpy as np
import psutil
import pytest
from tests.runtime.models import (
    WEIGHT,
    compile_ir,
    compress_artifact,
    count_artifact,
    scale_artifact,
)
from tests.runtime.process import python

from tilewright.errors import ArtifactError, OptionError, TargetError, UnsupportedError
from tilewright.machine import Target
from tilewright.runtime import Artifact, Executable
from tilewright.runtime.manifest import (
    FallbackStep,
    Manifest,
    TensorSpec,
)
from tilewright.runtime.manifest_meta import TargetSpec
from tilewright.runtime.workspace import MAX_IDLE_CALLS, WorkspacePool


@pytest.fixture(scope="module")
def scale() -> Executable:
    return Executable(scale_artifact(), threads=1)


def rows(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 2.0, (n, 3)).astype(np.float32)


@pytest.mark.parametrize("n", [1, 2, 7, 1000, 0])
def test_result_for_every_size(scale: Executable, n: int) -> None:
    x = rows(n, seed=n)
    for _ in range(2):  # the second call is a fast call
        y = scale(x)
        np.testing.assert_array_equal(y, x * WEIGHT)
        assert y.dtype == np.float32
        assert y.shape == (n, 3)


def test_by_name_and_as_a_mapping(scale: Executable) -> None:
    x = rows(4)
    np.testing.assert_array_equal(scale(x=x), x * WEIGHT)
    assert list(scale.run({"x": x})) == ["y"]
    np.testing.assert_array_equal(scale.run({"x": x}, ["y"])["y"], x * WEIGHT)
    assert scale.run({"x": x}, []) == {}


def test_results_do_not_share_memory(scale: Executable) -> None:
    x = rows(4)
    first, second = scale(x), scale(x)
    first[...] = 7
    np.testing.assert_array_equal(second, x * WEIGHT)


@pytest.mark.parametrize(
    "variant", ["fortran", "strided", "reversed", "read-only", "unaligned", "list", "dlpack", "__array__"]
)
def test_every_kind_of_array(scale: Executable, variant: str) -> None:
    x = rows(6, seed=3)
    feed: object = x
    if variant == "fortran":
        feed = np.asfortranarray(x)
    elif variant == "strided":
        wide = np.repeat(x, 2, axis=1)
        feed = wide[:, ::2]
    elif variant == "reversed":
        feed = x[::-1].copy()[::-1]
    elif variant == "read-only":
        x.flags.writeable = False
    elif variant == "unaligned":
        raw = np.zeros(x.nbytes + 1, np.uint8)
        raw[1:] = x.reshape(-1).view(np.uint8)
        feed = raw[1:].view(np.float32).reshape(x.shape)
        assert not feed.flags.aligned
    elif variant == "list":
        feed = x.tolist()
    elif variant == "dlpack":
        feed = OnlyDlpack(x)
    else:
        feed = OnlyArray(x)
    for _ in range(2):
        np.testing.assert_array_equal(scale(feed), x * WEIGHT)


class OnlyDlpack:
    """Another library's tensor, as the array standard sees it."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class OnlyArray:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.array


def test_descriptors(scale: Executable) -> None:
    assert [(s.name, s.dtype, s.dims) for s in scale.inputs] == [("x", "float32", ("n", 3))]
    assert [str(s) for s in scale.outputs] == ["float32 [n, 3]"]
    assert repr(scale) == "<Executable (x: float32 [n, 3]) -> (y: float32 [n, 3]), 1 thread>"


def test_concurrent_calls_give_equal_bits(scale: Executable) -> None:
    feeds = [rows(n, seed=n) for n in range(1, 40) if n != 13]
    expected = [scale(x) for x in feeds]
    wrong: list[int] = []

    def work(offset: int) -> None:
        for i in range(400):
            k = (i * 7 + offset) % len(feeds)
            if not np.array_equal(scale(feeds[k]), expected[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_memory_does_not_grow_over_random_shapes() -> None:
    exe = Executable(scale_artifact(), threads=1)
    rng = np.random.default_rng(1)
    sizes = [int(n) if n != 13 else 14 for n in rng.integers(0, 1001, 10_000)]
    feed = rows(1000)
    for n in sizes[:1500]:
        exe(feed[:n])
    gc.collect()
    before = psutil.Process().memory_info().rss
    for n in sizes:
        exe(feed[:n])
    gc.collect()
    assert psutil.Process().memory_info().rss - before < 2 * 1024 * 1024


def test_workspace_is_reused_grows_and_shrinks() -> None:
    pool = WorkspacePool()
    block = pool.take(1000)
    assert block.address % 64 == 0
    pool.give(block)
    assert pool.take(500) is block
    pool.give(block)
    big = pool.take(1_000_000)
    assert big is not block
    assert big.size == 1_000_000
    pool.give(big)
    for _ in range(MAX_IDLE_CALLS):
        held = pool.take(100)
        assert held is big
        pool.give(held)
    pool.give(pool.take(100))
    assert pool.bytes == 100


def test_thread_team_of_a_model() -> None:
    two = Executable(count_artifact(), threads=2)
    assert two().tolist() == [2, 2, 0, 0]
    one = Executable(count_artifact(), threads=1)
    assert one().tolist() == [1, 0, 0, 0]
    assert (two.threads, one.threads) == (2, 1)


def test_forked_child_uses_one_thread() -> None:
    script = """
        import os, sys
        from tests.runtime.models import count_artifact
        from tilewright.runtime import Executable
        exe = Executable(count_artifact(), threads=2)
        assert exe().tolist() == [2, 2, 0, 0]
        child = os.fork()
        if child == 0:
            os._exit(0 if exe().tolist() == [1, 0, 0, 0] and exe.threads == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert exe.threads == 2
    """
    assert python(script).returncode == 0


@pytest.mark.parametrize("library", ["none", "libgomp.so.1"])
def test_openmp_library_by_variable(library: str) -> None:
    script = """
        from tests.runtime.models import count_artifact
        from tilewright.runtime import Executable
        exe = Executable(count_artifact(), threads=2)
        print(exe().tolist(), exe.threads)
    """
    process = python(script, TILEWRIGHT_OMP_LIBRARY=library)
    assert process.returncode == 0, process.stderr
    expected = "[1, 0, 0, 0] 1" if library == "none" else "[2, 2, 0, 0] 2"
    assert process.stdout.strip() == expected


def test_openmp_variable_without_a_library() -> None:
    script = """
        from tests.runtime.models import count_artifact
        from tilewright.errors import OptionError
        from tilewright.runtime import Executable
        try:
            Executable(count_artifact())()
        except OptionError as error:
            print(error)
    """
    process = python(script, TILEWRIGHT_OMP_LIBRARY="/nowhere/libgomp.so")
    assert process.stdout.strip() == (
        "[option] environment variable TILEWRIGHT_OMP_LIBRARY=/nowhere/libgomp.so: expected a shared library with "
        "GOMP_parallel, GOMP_barrier, omp_get_thread_num, omp_get_num_threads; unset it or give a path"
    )


def test_steps_with_a_data_dependent_size() -> None:
    exe = Executable(compress_artifact(), threads=1)
    for n in (1, 5, 40):
        x = rows(n, seed=n)
        keep = np.random.default_rng(n).uniform(size=n) < 0.5
        out, selected = exe(x, keep)
        np.testing.assert_array_equal(selected, (x * WEIGHT)[keep])
        if selected.size and selected[0, 0] >= 0:
            np.testing.assert_array_equal(out, selected * WEIGHT)


def test_steps_with_an_empty_intermediate() -> None:
    out, selected = Executable(compress_artifact(), threads=1)(rows(3), np.zeros(3, np.bool_))
    assert out.shape == selected.shape == (0, 3)


def test_evaluator_outputs_are_copied() -> None:
    exe = Executable(compress_artifact(), threads=1)
    x, keep = rows(3), np.ones(3, np.bool_)
    first = exe(x, keep)[1]
    first[...] = 9
    np.testing.assert_array_equal(exe(x, keep)[1], x * WEIGHT)


def test_output_that_is_an_input() -> None:
    spec = TensorSpec("x", "float32", (None,))
    manifest = Manifest((spec,), (spec,), (), (), TargetSpec.of(Target.host()))
    x = np.array([1.5, 2.5], np.float32)
    y = Executable(Artifact(manifest, b"", {}))(x)
    np.testing.assert_array_equal(y, x)
    assert not np.shares_memory(x, y)


def test_evaluator_error_names_the_node() -> None:
    exe = Executable(compress_artifact(), threads=1)
    bad = FallbackStep("w", exe.manifest.steps[1].inputs, exe.manifest.steps[1].outputs)
    steps = (exe.manifest.steps[0], bad, exe.manifest.steps[2])
    manifest = Manifest(exe.inputs, exe.outputs, exe.manifest.symbols, steps, exe.manifest.target)
    with pytest.raises(ArtifactError, match=r"^\[artifact\] model '': 'w' is not an ONNX model$"):
        Executable(Artifact(manifest, exe.artifact.code, exe.artifact.weights)).prepare()


def test_operator_unknown_to_the_evaluator() -> None:
    from onnx import TensorProto, helper

    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])
    graph = helper.make_graph([helper.make_node("Strange", ["x"], ["y"], domain="somewhere")], "g", [info], [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("somewhere", 1)])
    x, y = TensorSpec("x", "float32", (None,)), TensorSpec("y", "float32", (None,))
    step = FallbackStep("m", (x,), (y,), ("node 's' (Strange)",))
    manifest = Manifest((x,), (y,), (), (step,), TargetSpec.of(Target.host()))
    data = np.frombuffer(model.SerializeToString(), np.uint8)
    with pytest.raises(UnsupportedError, match=r"'s' \(Strange\): the Python function .*'somewhere::Strange' is not"):
        Executable(Artifact(manifest, b"", {"m": data}))(np.ones(2, np.float32))


def test_code_for_another_machine_is_not_called() -> None:
    exe = Executable(scale_artifact(Target.parse("aarch64" if Target.host().arch == "x86_64" else "x86-64")))
    here, there = Target.host().arch, exe.manifest.target.arch
    with pytest.raises(TargetError) as error:
        exe(rows(2))
    expected = f"[target] model 'scale': code for {there}, this machine is {here}; compile for this machine"
    assert str(error.value) == expected


def test_unresolved_symbol() -> None:
    artifact = scale_artifact()
    code = compile_ir("declare void @nowhere()\ndefine void @P_main() {\n call void @nowhere()\n ret void\n}")
    with pytest.raises(ArtifactError, match="the code can't be linked: "):
        Executable(Artifact(artifact.manifest, code, artifact.weights)).prepare()


def test_invalid_object_code() -> None:
    artifact = scale_artifact()
    with pytest.raises(ArtifactError, match=r"the code can't be linked: .*not recognized as a valid object file"):
        Executable(Artifact(artifact.manifest, b"not ELF at all", artifact.weights)).prepare()


@pytest.mark.parametrize("threads", [0, -1, 5000, 2.5, "two", True])
def test_invalid_number_of_threads(threads: object) -> None:
    with pytest.raises(OptionError) as error:
        Executable(scale_artifact(), threads=threads)
    actual = repr(threads) if not isinstance(threads, int) or isinstance(threads, bool) else threads
    assert str(error.value) == (
        f"[option] argument 'threads': expected a number of threads, got {actual}; give an integer from 1 to 1024"
    )


def test_unaligned_weights_are_copied() -> None:
    artifact = scale_artifact()
    raw = np.empty(32, np.float32)
    start = next(i for i in range(32) if (raw[i:].ctypes.data % 64) == 4 * 5)
    raw[start : start + 3] = WEIGHT
    exe = Executable(Artifact(artifact.manifest, artifact.code, {"w": raw[start : start + 3]}))
    assert exe.artifact.weights["w"].ctypes.data % 64 == 0
    np.testing.assert_array_equal(exe(rows(2)), rows(2) * WEIGHT)


def test_library_is_freed() -> None:
    gc.collect()
    before = len(gc.get_objects())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    artifact = scale_artifact()
    for _ in range(200):
        Executable(artifact, threads=1)(rows(2))
    gc.collect()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 40 * 1024
    assert len(gc.get_objects()) - before < 2000


def test_intermediates_are_freed_after_their_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    import weakref

    from tilewright.runtime.native_call import NativeCall

    references: list[weakref.ref[np.ndarray]] = []
    alive: list[bool] = []
    run = NativeCall.run

    def watched(self: NativeCall, *args: object) -> list[np.ndarray]:
        alive.extend(ref() is not None for ref in references)
        results = run(self, *args)
        references.extend(weakref.ref(r) for r in results)
        return results

    monkeypatch.setattr(NativeCall, "run", watched)
    x, keep = rows(5), np.array([True, False, True, True, False])
    out, kept = Executable(compress_artifact(), threads=1)(x, keep)
    assert alive == [False]  # 'middle' is freed when the last step begins
    np.testing.assert_array_equal(kept, (x * WEIGHT)[keep])
    np.testing.assert_array_equal(out[:, 0], kept[:, 0] * WEIGHT[0])
