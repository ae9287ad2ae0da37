"""The backend interface, a sample of ONNX's cases that has each kind, and the guard around them."""

import os
import time
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.onnx_backend.__main__ import fallback_operators, table, write_outcomes, written_outcomes
from tests.onnx_backend.cases import Outcome, load_cases, run_case
from tests.onnx_backend.initializers import WithInitializers, has_structure, structural_inputs, with_initializers
from tests.onnx_backend.nearer import is_nearer
from tests.onnx_backend.workers import run_all

import tilewright
from tilewright.errors import FeedError, OptionError

EXPECTED = {
    ("Node", "test_abs"): "native",
    ("Node", "test_add_bcast"): "native",
    ("Node", "test_conv_with_autopad_same"): "native",
    ("Node", "test_gemm_all_attributes"): "native",
    ("Node", "test_softmax_axis_1"): "native",
    ("Node", "test_reduce_sum_keepdims_example"): "native",
    ("Node", "test_layer_normalization_2d_axis1"): "native",
    ("Node", "test_mod_float_edge_cases_fmod_0_float16"): "native",
    ("Node", "test_mod_float_edge_cases_fmod_0_float32"): "native",
    ("Node", "test_mod_float_edge_cases_fmod_0_float64"): "native",
    ("Node", "test_mod_float32_mixed_sign_fmod_0"): "native",
    # functions of functions
    ("Node", "test_sce_mean"): "native",
    ("Node", "test_sce_NCd1d2d3d4d5_mean_weight"): "native",
    # defaults of a function's attributes
    ("Node", "test_hannwindow"): "native",
    ("Node", "test_hammingwindow_symmetric"): "native",
    ("Node", "test_blackmanwindow"): "native",
    # functions that the inliner can't take
    ("Node", "test_linear_attention_gated_delta_gqa"): "native",
    ("Node", "test_causal_conv_with_state_silu_with_past_state"): "native",
    # routines on bits, matrices, windows and spectra
    ("Node", "test_affine_grid_3d"): "native",
    ("Node", "test_bitcast_bool_to_uint8"): "native",
    ("Node", "test_col2im_5d"): "native",
    ("Node", "test_deform_conv_with_multiple_offset_groups"): "native",
    ("Node", "test_det_nd"): "native",
    ("Node", "test_dft_irfft"): "native",
    ("Node", "test_scan_sum"): "native",
    ("Node", "test_maxunpool_export_with_output_shape"): "native",
    ("Node", "test_melweightmatrix"): "native",
    ("Node", "test_stft_with_window"): "native",
    # scales and sizes by data, stretched filters
    ("Node", "test_resize_downsample_scales_cubic_antialias"): "native",
    ("Node", "test_resize_tf_crop_and_resize_extrapolation_value"): "native",
    ("Node", "test_resize_downsample_scales_linear_align_corners"): "native",
    # scores as an output, keys that do not count
    ("Node", "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal"): "native",
    ("Node", "test_attention_local_window_ext_cache_rank3_head_mask"): "native",
    # exotic types, sequences, optional values, control flow
    ("Node", "test_cast_FLOAT8E4M3FN_to_FLOAT"): "fallback",
    ("Node", "test_cast_FLOAT_to_INT4"): "fallback",
    ("Node", "test_cast_UINT2_to_FLOAT"): "fallback",
    ("Node", "test_cast_FLOAT_to_FLOAT4E2M1"): "fallback",
    ("Node", "test_string_concat"): "fallback",
    ("Node", "test_strnormalizer_export_monday_casesensintive_lower"): "fallback",
    ("Node", "test_sequence_insert_at_front"): "fallback",
    ("Node", "test_optional_has_element_empty_optional_input"): "fallback",
    ("Node", "test_optional_get_element_sequence"): "fallback",
    ("Node", "test_if_opt"): "fallback",
    ("Node", "test_loop16_seq_none"): "fallback",
    ("Node", "test_range_float_type_positive_delta_expanded"): "native",
    ("Node", "test_scatter_with_axis"): "native",
    ("Node", "test_image_decoder_decode_png_rgb"): "fallback",
    # models without the standard operators
    ("Node", "test_ai_onnx_ml_binarizer"): "fallback",
    ("Node", "test_adam_multiple"): "native",
    ("Node", "test_bernoulli"): "drawn",
    ("Simple", "test_sequence_model1"): "fallback",
    ("Simple", "test_gradient_of_add"): "refused",
    # ONNX's own Softmax of float16 rounds more often
    ("Node", "test_attention_4d_causal_fp16"): "native",
    ("Node", "test_attention_4d_causal_fp16_expanded"): "nearer",
    # early operator sets
    ("PyTorchConverted", "test_PReLU_2d_multiparam"): "native",
    ("PyTorchConverted", "test_Conv2d_padding"): "native",
    ("PyTorchOperator", "test_operator_addmm"): "native",
    ("PyTorchOperator", "test_operator_add_broadcast"): "native",
    ("PyTorchOperator", "test_operator_pad"): "native",
}


loaded_cases = cache(load_cases)
"""The cases of a backend; reading all of ONNX's takes seconds."""


def test_all_categories_are_there():
    cases = loaded_cases()
    assert len(cases) >= 1900
    assert {category for category, _ in cases} == {"Node", "Real", "Simple", "PyTorchConverted", "PyTorchOperator"}


@pytest.mark.parametrize("key", EXPECTED, ids=lambda key: key[1])
def test_case(key):
    cases = loaded_cases()
    if key not in cases:
        pytest.fail(f"this version of onnx ({onnx.__version__}) has no case {key}")
    outcome = run_case(cases[key])
    assert outcome.kind == EXPECTED[key], outcome.detail


INITIALIZED = [("Node", "test_reduce_sum_keepdims_random"), ("Node", "test_resize_upsample_sizes_cubic"),
               ("Node", "test_slice_neg"), ("Node", "test_cumsum_1d")]  # fmt: skip
"""Cases with inputs that state axes, shapes or sizes."""


@pytest.mark.parametrize("key", INITIALIZED, ids=lambda key: key[1])
def test_case_with_initializers(key):
    assert has_structure(loaded_cases(WithInitializers.probe)[key])
    outcome = run_case(loaded_cases(WithInitializers)[key])
    assert outcome.kind == "native", outcome.detail


def test_which_inputs_are_structure():
    nodes = [helper.make_node("Slice", ["x", "a", "b"], ["y"]), helper.make_node("Add", ["y", "c"], ["z"]),
             helper.make_node("ConstantOfShape", ["d"], ["t"])]  # fmt: skip
    values = [helper.make_tensor_value_info(n, 7, None) for n in "xabcd"]
    graph = helper.make_graph(nodes, "g", values, [helper.make_tensor_value_info(n, 7, None) for n in "zt"])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    assert structural_inputs(model) == ["a", "b", "d"]
    changed = with_initializers(model, {"a": np.array([1]), "d": np.array([2, 3])})
    assert [i.name for i in changed.graph.input] == ["x", "b", "c"]
    assert [i.name for i in changed.graph.initializer] == ["a", "d"]
    assert structural_inputs(changed) == ["b"]


def test_operators_of_fallbacks_are_counted():
    outcomes = {("A", "a"): Outcome("fallback", "Cast"), ("A", "b"): Outcome("fallback", "Cast"),
                ("A", "c"): Outcome("fallback", "Adam"), ("A", "d"): Outcome("native")}  # fmt: skip
    assert fallback_operators(outcomes) == "on the reference evaluator: Cast 2, Adam 1"


def _passes(_):
    raise AssertionError("the case prepares nothing")


def _dies(_):
    os.abort()


def _hangs(_):
    time.sleep(60)


def test_processes_that_end_or_hang_cost_one_case():
    outcomes = dict(run_all({("A", "a"): _passes, ("A", "b"): _dies, ("A", "c"): _passes, ("B", "d"): _hangs,
                          ("B", "e"): _passes}, jobs=1, timeout=1.0))  # fmt: skip
    assert {name: o.kind for (_, name), o in outcomes.items()} == {
        "a": "failed", "b": "crashed", "c": "failed", "d": "crashed", "e": "failed"
    }  # fmt: skip
    assert outcomes["A", "b"].detail == "the process ended with -6"
    assert outcomes["B", "d"].detail == "no answer in time"


def test_table():
    text = table({("A", "a"): Outcome("native"), ("A", "b"): Outcome("wrong"), ("B", "c"): Outcome("fallback")})
    rows = [line.split() for line in text.splitlines()]
    assert rows[0][-2:] == ["passed", "all"]
    assert rows[1:] == [
        ["A", "1", "0", "0", "0", "0", "1", "0", "0", "1", "2"],
        ["B", "0", "1", "0", "0", "0", "0", "0", "0", "1", "1"],
        ["all", "1", "1", "0", "0", "0", "1", "0", "0", "2", "3"],
    ]


def test_only_what_is_nearer_to_float64_everywhere_counts_as_nearer():
    x = np.linspace(-2, 2, 9).astype(np.float16)
    node, given = helper.make_node("Exp", ["x"], ["y"]), helper.make_tensor_value_info("x", 10, [9])
    graph = helper.make_graph([node], "g", [given], [helper.make_tensor_value_info("y", 10, [9])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    right = np.exp(x.astype(np.float64)).astype(np.float16)
    bits = right.view(np.uint16)

    def nearer(expected: np.ndarray, actual: np.ndarray) -> bool:
        return is_nearer(model, {"x": x}, [expected], [actual], 1e-4, 0.0)

    above, below = (bits + 2).view(np.float16), (bits - 1).view(np.float16)
    assert nearer(above, right)
    assert nearer(above, below)
    assert not nearer(right, above)
    assert not nearer(below, above)
    one_is_off = right.copy()
    one_is_off[4] = above[4]
    assert nearer(one_is_off, right)
    assert not nearer(one_is_off, np.where(np.arange(9) == 7, above, right).astype(np.float16))
    assert not nearer(above, np.full(9, np.nan, np.float16))
    assert not nearer(right, right[:8])
    assert not nearer(right, right.astype(np.float32))


def affine() -> onnx.ModelProto:
    nodes = [helper.make_node("Mul", ["x", "a"], ["t"]), helper.make_node("Add", ["t", "b"], ["y"])]
    values = [helper.make_tensor_value_info(n, 1, ["N", 3]) for n in "xab"]
    outputs = [helper.make_tensor_value_info(n, 1, ["N", 3]) for n in "yt"]
    graph = helper.make_graph(nodes, "g", values, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def test_outcomes_of_a_run_that_was_stopped(tmp_path):
    path = tmp_path / "outcomes.json"
    assert written_outcomes(path) == {}
    outcomes = {("Node", "test_abs"): Outcome("native"), ("Node", "test_scan"): Outcome("refused", "Scan of version 8")}
    for _ in range(2):
        write_outcomes(path, outcomes)
        assert written_outcomes(path) == outcomes
    assert list(tmp_path.iterdir()) == [path]


def test_backend_interface():
    x, a, b = np.random.default_rng(5).normal(size=(3, 2, 3)).astype(np.float32)
    prepared = tilewright.OnnxBackend.prepare(affine(), "CPU", optimizer="rule")
    for inputs in ([x, a, b], (x, a, b), {"b": b, "a": a, "x": x}):
        y, t = prepared.run(inputs)
        np.testing.assert_allclose(y, x * a + b, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(t, x * a)
    with pytest.raises(FeedError, match="expected 3 inputs, got 2"):
        prepared.run([x, a])
    y, _ = tilewright.OnnxBackend.run_model(affine(), [x, a, b], optimizer="rule")
    np.testing.assert_allclose(y, x * a + b, rtol=1e-6, atol=1e-6)


def test_single_input_without_a_list():
    x = np.random.default_rng(6).normal(size=(2, 3)).astype(np.float32)
    (y,) = tilewright.OnnxBackend.run_node(helper.make_node("Relu", ["x"], ["y"]), [x])
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    defined, undefined = helper.make_tensor_value_info("x", 1, [2, 3]), onnx.ValueInfoProto(name="y")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [defined], [undefined])
    (y,) = tilewright.OnnxBackend.prepare(helper.make_model(graph)).run(x)
    np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_devices():
    assert tilewright.OnnxBackend.supports_device("CPU")
    assert tilewright.OnnxBackend.supports_device("CPU:0")
    assert not tilewright.OnnxBackend.supports_device("CUDA")
    assert not tilewright.OnnxBackend.supports_device("abacus")
    with pytest.raises(OptionError, match="expected 'CPU', got 'CUDA'"):
        tilewright.OnnxBackend.prepare(affine(), "CUDA")


def test_nodes_of_a_version_and_of_sequences():
    node = helper.make_node("ReduceSum", ["x"], ["y"], axes=[1], keepdims=0)
    x = np.random.default_rng(7).normal(size=(2, 3)).astype(np.float32)
    (y,) = tilewright.OnnxBackend.run_node(node, [x], opset_version=11, optimizer="rule")
    np.testing.assert_allclose(y, x.sum(1), rtol=1e-5)
    node = helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)
    with pytest.warns(tilewright.FallbackWarning):
        (y,) = tilewright.OnnxBackend.run_node(node, [[x, 2 * x]], outputs_info=[(np.dtype(np.float32), (4, 3))])
    np.testing.assert_array_equal(y, np.concatenate([x, 2 * x]))
    with pytest.raises(FeedError, match="expected 1 input, got 2"):
        tilewright.OnnxBackend.run_node(node, [x, x])
