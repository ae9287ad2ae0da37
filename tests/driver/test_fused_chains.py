"""Chains of contractions in compiled models: what is fused, that results are those of the unfused model, the option."""

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.driver.models import residual_conv
from tests.frontend.onnx_models import model
from tests.graph.chains.chain_models import attention, cached_attention, merged_heads, two_products

import tilewright as tw
from tilewright.driver.build import FUSIONS
from tilewright.driver.compilation import Compilation
from tilewright.driver.compile import make_compilation
from tilewright.driver.options import CompileOptions
from tilewright.errors import OptionError
from tilewright.graph.layouts.plan import Choice
from tilewright.layout.primitives import Reorder
from tilewright.runtime import Executable

MACHINE = "x86-64-v4"

REFUSED = two_products(61, 308, 126, 6)
NARROW = two_products(2000, 16, 600, 16)
"""Products whose intermediate is 19 times as large as all else."""

THREE = model(
    "c = MatMul(x, a) r = Relu(c) d = MatMul(r, b) s = Relu(d) y = MatMul(s, a)",
    inputs="float[8192, 16] x, float[16, 128] a, float[128, 16] b", outputs="float[8192, 128] y",
)  # fmt: skip

TRANSPOSED = model(
    "c = MatMul(a, b) t = Transpose<perm = [1, 0]>(c) e = MatMul(t, d)",
    inputs="float[300, 16] a, float[16, 2000] b, float[300, 16] d", outputs="float[2000, 16] e",
)  # fmt: skip


def compiled(source: onnx.ModelProto, fusion: str, shapes: dict[str, object] | None = None) -> Compilation:
    options = CompileOptions(shapes=shapes, optimizer="roller", machine=MACHINE, fusion=fusion)  # type: ignore[arg-type]
    return make_compilation(source, options)


def feeds_of(source: onnx.ModelProto, **sizes: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    dims = {i.name: i.type.tensor_type.shape.dim for i in source.graph.input}
    shapes = {n: [sizes[d.dim_param] if d.dim_param else d.dim_value for d in x] for n, x in dims.items()}
    return {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}


def fused_and_not(
    source: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], shapes: dict[str, object] | None = None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Results of the model with a chain in one kernel, and of the unfused model."""
    return answers_of(compiled(source, "mcfuser", shapes), compiled(source, "unfused", shapes), feeds)


def answers_of(
    fused: Compilation, unfused: Compilation, feeds: list[dict[str, np.ndarray]]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Results of a model's compilation that has a chain in one kernel, and of one that has none."""
    assert any(x.evaluation.chosen for x in fused.chains)
    assert unfused.chains == ()
    one, other = Executable(fused.artifact()), Executable(unfused.artifact())
    return [(one(**x), other(**x)) for x in feeds]


@pytest.mark.parametrize(
    ("source", "kernels"),
    [(NARROW, 1), (THREE, 1), (TRANSPOSED, 1), (attention(512, 1), 1), (attention(300, 2, mask=True), 1),
     (merged_heads(200), 1)],
    ids=["two products", "three products", "transposed", "attention", "masked", "merged heads"],
)  # fmt: skip
def test_chains_become_one_kernel_with_the_same_results(source: onnx.ModelProto, kernels: int) -> None:
    compilation = compiled(source, "mcfuser")
    assert len(compilation.kernels) == kernels
    assert [k.optimizer for k in compilation.kernels] == ["mcfuser"]
    ((one, other),) = answers_of(compilation, compiled(source, "unfused"), [feeds_of(source)])
    np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5 * np.abs(other).max())


def test_compute_bound_products_stay_kernels_of_their_own() -> None:
    compilation = compiled(two_products(64, 512, 512, 512), "mcfuser")
    (chain,) = compilation.chains
    assert not chain.evaluation.chosen
    assert chain.evaluation.reason.startswith("compute-bound: ")
    assert chain.construction is None
    assert len(compilation.kernels) == 2


def test_a_chain_that_is_not_faster_is_refused_by_its_time() -> None:
    compilation = compiled(REFUSED, "mcfuser")
    (chain,) = compilation.chains
    evaluation = chain.evaluation
    assert evaluation.before is not None
    assert evaluation.after is not None
    assert not evaluation.chosen
    assert evaluation.after >= evaluation.before
    assert chain.construction is not None
    assert chain.construction.programs
    assert [k.optimizer for k in compilation.kernels] == ["roller", "roller"]


def test_remainders_of_rows_are_estimated() -> None:
    """Tiles of rows of several heights: every part has nests of the same statements."""
    for rows in (2048, 1030, 77):
        (chain,) = compiled(two_products(rows, 64, 64, 64), "mcfuser").chains
        assert chain.evaluation.after is not None


def test_without_a_chosen_chain_the_code_is_the_same() -> None:
    source = REFUSED
    assert compiled(source, "mcfuser").llvm() == compiled(source, "unfused").llvm()


def test_symbolic_sequences() -> None:
    source = attention("S", 1, mask=True)
    feeds = [feeds_of(source, S=n) for n in (1, 7, 16, 200)]
    for one, other in fused_and_not(source, feeds, {"S": "1..1024"}):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("shared_by", "fused"), [(1, 2), (3, 1)])
def test_keys_and_values_of_a_cache_are_stored_by_the_kernels_that_read_them(shared_by: int, fused: int) -> None:
    source = cached_attention(4, 64, shared_by)
    shapes: dict[str, object] = {"B": "1..4", "P": "0..300"}
    compilation = compiled(source, "mcfuser", shapes)
    assert sum(x.evaluation.chosen for x in compilation.chains) == fused
    executables = [Executable(x.artifact()) for x in (compilation, compiled(source, "unfused", shapes))]
    rng = np.random.default_rng(shared_by)
    for past in (0, 1, *map(int, rng.integers(2, 300, 6))):
        feeds = feeds_of(source, B=int(rng.integers(1, 5)), P=past)
        (y, keys, values), (expected, *_) = (x(**feeds) for x in executables)
        np.testing.assert_array_equal(keys, np.concatenate([feeds["old_keys"], feeds["k"]], 2))
        np.testing.assert_array_equal(values, np.concatenate([feeds["old_values"], feeds["v"]], 2))
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_long_sequences_store_no_scores() -> None:
    source = heads_of_attention(8, 16384, 64)
    compilation = compiled(source, "mcfuser")
    assert [k.optimizer for k in compilation.kernels] == ["mcfuser"]
    assert not any(own for k in compilation.kernels for own in k.scratch)
    assert [str(x.memory.total) for x in compilation.segments] == ["0"]


@pytest.mark.parametrize("attributes", [{"is_causal": 1}, {"is_causal": 1, "left_window_size": 40}])
def test_masks_by_indices(attributes: dict[str, int]) -> None:
    source = heads_of_attention(2, "S", 24, **attributes)
    feeds = [feeds_of(source, S=n) for n in (1, 17, 100, 333)]
    for x in feeds:
        x["k"][0, 0, -1] = np.nan
        x["v"][0, 1, -1, 3] = np.inf
    for one, other in fused_and_not(source, feeds, {"S": "1..512"}):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 96])
def test_heads_that_share_keys(length: int) -> None:
    source = heads_of_attention(6, "S", 24, key_heads=2, queries=length)
    fused, unfused = (compiled(source, f, {"S": "1..512"}) for f in ("mcfuser", "unfused"))
    assert length == 1 or len(fused.kernels) == 1
    one, other = (Executable(c.artifact()) for c in (fused, unfused))
    for size in (1, 50, 333):
        feeds = feeds_of(source, S=size)
        np.testing.assert_allclose(one(**feeds), other(**feeds), rtol=1e-5, atol=1e-5)


def heads_of_attention(
    heads: int,
    length: int | str,
    size: int,
    key_heads: int | None = None,
    queries: int | None = None,
    **attributes: int,
) -> onnx.ModelProto:
    """ONNX's Attention of heads that come first."""
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"])
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    shape, stored = (1, heads, queries or length, size), (1, key_heads or heads, length, size)
    q, k, v, y = (
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, stored if n in "kv" else shape) for n in "qkvy"
    )
    graph = helper.make_graph([node], "attention", [q, k, v], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=10)


def test_symbolic_batches() -> None:
    shapes = {"a": ["b", 500, 16], "c": ["b", 16, 600], "d": ["b", 600, 16]}
    nodes = [helper.make_node("MatMul", ["a", "c"], ["t"]), helper.make_node("MatMul", ["t", "d"], ["y"])]
    inputs = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in shapes.items()]
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["b", 500, 16])
    graph = helper.make_graph(nodes, "batches", inputs, [result])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    rng = np.random.default_rng(4)
    feeds = [
        {n: rng.standard_normal((b, *s[1:])).astype(np.float32) for n, s in shapes.items()}  # type: ignore[call-overload]
        for b in (1, 3)
    ]
    for one, other in fused_and_not(source, feeds, {"b": "1..8"}):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-6 * np.abs(other).max())


def test_sequences_that_may_be_empty_are_refused_where_no_tree_allows_for_them() -> None:
    source = attention("S", 1, mask=True)
    compilation = compiled(source, "mcfuser", {"S": "0..1024"})
    (chain,) = compilation.chains
    assert chain.evaluation.chosen or "S may be 0" in chain.evaluation.reason
    executable = Executable(compilation.artifact())
    for n in (0, 3):
        result = executable(**feeds_of(source, S=n))
        assert result.shape == (1, n, 24)


def test_products_without_rows() -> None:
    source = two_products("M", 16, 600, 16)
    feeds = [feeds_of(source, M=n) for n in (0, 1, 100)]
    for one, other in fused_and_not(source, feeds, {"M": "0..4096"}):
        assert one.shape == other.shape
        scale = np.abs(other).max(initial=0.0)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-6 * scale)


@pytest.mark.parametrize("range_of_rows", ["1..3", "0..8"])
def test_few_rows_of_symbolic_number(range_of_rows: str) -> None:
    source = two_products("M", 16, 600, 16)
    (chain,) = compiled(source, "mcfuser", {"M": range_of_rows}).chains
    assert chain.evaluation.after is not None


def test_masked_places_may_hold_anything() -> None:
    """Rows masked in part and whole, NaN and infinities in keys and values behind the mask."""
    source = attention(96, 1, mask=True)
    feeds = feeds_of(source)
    rng = np.random.default_rng(1)
    mask = np.where(rng.random(feeds["mask"].shape) < 0.5, -np.inf, 0.0).astype(np.float32)
    mask[0, 0, 5] = -np.inf
    feeds["mask"] = mask
    odd = {**feeds, "v": feeds["v"].copy(), "k": feeds["k"].copy()}
    odd["v"][0, 3, :4] = np.inf
    odd["v"][0, 50, 9] = np.nan
    odd["k"][0, 17, 2] = -np.inf
    for one, other in fused_and_not(source, [feeds, odd]):
        np.testing.assert_array_equal(np.isnan(one), np.isnan(other))
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_intermediates_that_are_outputs_are_computed_as_before() -> None:
    body = "c = MatMul(x, a) r = Relu(c) y = MatMul(r, b)"
    outputs = "float[2000, 16] y, float[2000, 128] r"
    source = model(body, inputs="float[2000, 16] x, float[16, 128] a, float[128, 16] b", outputs=outputs)
    fused, unfused = (Executable(compiled(source, f).artifact()) for f in ("mcfuser", "unfused"))
    feeds = feeds_of(source)
    for one, other in zip(fused(**feeds), unfused(**feeds), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_other_types_are_refused() -> None:
    body = "c = MatMul(x, a) y = MatMul(c, b)"
    source = model(
        body, inputs="double[2000, 16] x, double[16, 600] a, double[600, 16] b", outputs="double[2000, 16] y"
    )
    (chain,) = compiled(source, "mcfuser").chains
    assert chain.evaluation.reason == "the result of n0 (MatMul) is float64, expected float32"


@pytest.mark.parametrize("fusion", FUSIONS)
def test_the_artifact_records_the_option(fusion: str) -> None:
    compilation = compiled(NARROW, fusion)
    assert compilation.manifest.build is not None
    assert compilation.manifest.build.fusion == fusion
    assert {k.optimizer for k in compilation.kernels} == {"roller" if fusion == "unfused" else fusion}


def test_wrong_options_are_refused() -> None:
    with pytest.raises(OptionError, match="there is no 'always'; use one of mcfuser, chimera, unfused"):
        tw.compile(NARROW, fusion="always")
    with pytest.raises(OptionError, match="the optimizer 'rule' reads no description of a machine to estimate by"):
        tw.compile(NARROW, fusion="mcfuser", optimizer="rule")
    layouts = {"conv": Choice(output=(Reorder((0, 2, 3, 1)),))}
    with pytest.raises(OptionError, match="a plan of layouts excludes fused chains, so 'chimera' would have no effect"):
        tw.compile(residual_conv(8, 8), layouts=layouts, fusion="chimera")


def test_options_without_estimates_fuse_nothing() -> None:
    options = CompileOptions(optimizer="rule")
    compilation = make_compilation(NARROW, options)
    assert compilation.chains == ()
    assert compilation.build.fusion == "unfused"
