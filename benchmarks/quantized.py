"""Models quantized with ONNX Runtime's tools, next to ONNX Runtime: whether they are right, and what they cost.

`python -m benchmarks.quantized [--only resnet50/qdq] [--seconds 3] [--prepare] [--write]` quantizes ResNet-50 and
BERT-base of the zoo statically (QDQ and QOperator), BERT-base dynamically, and GPT-2 to 4 bits, below
`build/quantized`. Files that exist are used again, artifacts of the same code generator among them; `--prepare` only
makes them, so that a measurement needs a quiet machine for itself alone. A row is right where the largest difference
from ONNX Runtime's result is at most that between its results of the quantized and the float model. `--write` puts the
table into `benchmarks/README.md`; rows of earlier runs stay.
"""

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx.shape_inference
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

import tilewright
from benchmarks.common.environment import describe
from benchmarks.common.report import RESULTS, markdown_table, section, write_section
from benchmarks.common.turns import time_medians
from benchmarks.zoo.model import build_model
from benchmarks.zoo.models import MODELS
from tilewright.codegen.generator_version import generator_version
from tilewright.runtime.manifest import FallbackStep, all_steps

FOLDER = Path("build/quantized")
HEADER = ["model", "way", "native", "difference", "quantization error", "right", "tilewright ms", "onnxruntime ms",
          "ratio", "compile s"]  # fmt: skip
CALIBRATION_BATCHES = 4
Feeds = Mapping[str, Any]


class _Batches(CalibrationDataReader):
    """A few random batches for calibration."""

    def __init__(self, batches: list[Feeds]) -> None:
        self._remaining = iter(batches)

    def get_next(self) -> Feeds | None:
        return next(self._remaining, None)


def _prepare_model(name: str) -> Path:
    """The zoo's model in one file, with shapes inferred and functions inlined, as ONNX Runtime's tools want it."""
    target = FOLDER / f"{name}.onnx"
    if not target.exists():
        build_model(MODELS[name])
        FOLDER.mkdir(parents=True, exist_ok=True)
        model = onnx.inliner.inline_local_functions(onnx.load(MODELS[name].path))
        _split_gemms(model.graph)
        onnx.save(onnx.shape_inference.infer_shapes(model), target)
    return target


def _split_gemms(graph: onnx.GraphProto) -> None:
    """Writes each Gemm with constant weights and no factors as a MatMul and an Add, as the 4-bit quantizer wants it."""
    weights = {t.name: t for t in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        is_plain = all(attributes.get(k, 1) == 1 for k in ("alpha", "beta")) and not attributes.get("transA", 0)
        if node.op_type != "Gemm" or not is_plain or len(node.input) < 3 or node.input[1] not in weights:
            nodes.append(node)
            continue
        name = node.input[1]
        if attributes.get("transB", 0):
            name = f"{node.output[0]}_weights"
            transposed = np.ascontiguousarray(onnx.numpy_helper.to_array(weights[node.input[1]]).T)
            graph.initializer.append(onnx.numpy_helper.from_array(transposed, name))
        product = f"{node.output[0]}_product"
        nodes.append(onnx.helper.make_node("MatMul", [node.input[0], name], [product], name=product))
        nodes.append(onnx.helper.make_node("Add", [product, node.input[2]], list(node.output), name=node.name))
    del graph.node[:]
    graph.node.extend(nodes)


def _draw_batches(name: str, count: int, seed: int = 0) -> list[Feeds]:
    model = MODELS[name]
    return [model.inputs(model.shapes[0], seed + k) for k in range(count)]


def _static(name: str, form: QuantFormat, target: Path) -> None:
    quantize_static(
        _prepare_model(name), target, _Batches(_draw_batches(name, CALIBRATION_BATCHES)), quant_format=form,
        per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip


def _dynamic(name: str, target: Path) -> None:
    quantize_dynamic(_prepare_model(name), target, weight_type=QuantType.QInt8)


def _four_bits(name: str, target: Path) -> None:
    quantizer = MatMulNBitsQuantizer(onnx.load(_prepare_model(name)), block_size=32, is_symmetric=True)
    quantizer.process()
    quantizer.model.save_model_to_file(str(target), use_external_data_format=False)


WAYS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "resnet50/qdq": ("resnet50", lambda p: _static("resnet50", QuantFormat.QDQ, p)),
    "resnet50/qoperator": ("resnet50", lambda p: _static("resnet50", QuantFormat.QOperator, p)),
    "bert_base/qdq": ("bert_base", lambda p: _static("bert_base", QuantFormat.QDQ, p)),
    "bert_base/qoperator": ("bert_base", lambda p: _static("bert_base", QuantFormat.QOperator, p)),
    "bert_base/dynamic": ("bert_base", lambda p: _dynamic("bert_base", p)),
    "gpt2/4bit": ("gpt2", lambda p: _four_bits("gpt2", p)),
}
"""Models and how each is quantized."""


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _quantized(way: str) -> Path:
    """The quantized model, made where it is missing."""
    name, quantize = WAYS[way]
    path = FOLDER / f"{way.replace('/', '_')}.onnx"
    if not path.exists():
        _prepare_model(name)
        quantize(path)
    return path


def _artifact(way: str) -> tuple[Path, float]:
    """The artifact of a quantized model and the seconds that its compilation took; made where there is none.

    One of another version of the code generator is not used.
    """
    model = _quantized(way)
    path = model.with_name(f"{model.stem}-{generator_version()[:16]}.tw")
    seconds = path.with_suffix(".json")
    if not seconds.exists():
        begin = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            executable = tilewright.compile(model, threads=1, cache=False, records=False)
        taken = time.perf_counter() - begin
        executable.save(path)
        seconds.write_text(json.dumps({"compile_s": taken}))
    return path, json.loads(seconds.read_text())["compile_s"]


def _measure(way: str, seconds: float) -> dict[str, Any]:
    """What becomes of one quantized model, on one thread."""
    name = WAYS[way][0]
    artifact, compiled = _artifact(way)
    (feeds,) = _draw_batches(name, 1, seed=100)
    session = _session(_quantized(way))
    expected = session.run(None, feeds)
    in_float = _session(_prepare_model(name)).run(None, feeds)
    executable = tilewright.load(artifact, threads=1)
    actual = executable.run(dict(feeds))
    results = [actual[spec.name] for spec in executable.outputs]
    difference = max(float(np.abs(a - e).max()) for a, e in zip(results, expected, strict=True))
    bound = max(float(np.abs(e - f).max()) for e, f in zip(expected, in_float, strict=True))
    fallbacks = sum(isinstance(step, FallbackStep) for step in all_steps(executable.manifest.steps))
    calls = {"ours": lambda: executable.run(dict(feeds)), "theirs": lambda: session.run(None, feeds)}
    milliseconds = {name: 1e3 * t for name, t in time_medians(calls, seconds).items()}
    return {"difference": difference, "bound": bound, "fallbacks": fallbacks, "compile_s": compiled, **milliseconds}


def _table_rows(results: Mapping[str, Mapping[str, Any]]) -> Iterator[list[str]]:
    for way in filter(results.__contains__, WAYS):
        row, (name, _, form) = results[way], way.partition("/")
        right = row["difference"] <= row["bound"]
        yield [
            name, form, "yes" if not row["fallbacks"] else f"{row['fallbacks']} fallbacks", f"{row['difference']:.1e}",
            f"{row['bound']:.1e}", "yes" if right else "no", f"{row['ours']:.1f}", f"{row['theirs']:.1f}",
            f"{row['theirs'] / row['ours']:.2f}", f"{row['compile_s']:.0f}",
        ]  # fmt: skip


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(WAYS), help="one row")
    parser.add_argument("--seconds", type=float, default=3, help="time per row")
    parser.add_argument("--prepare", action="store_true", help="quantize and compile only")
    parser.add_argument("--write", action="store_true", help="write the table into benchmarks/README.md")
    options = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    file = RESULTS / "quantized.json"
    results: dict[str, Any] = json.loads(file.read_text())["models"] if file.exists() else {}
    for way in [options.only] if options.only else WAYS:
        if options.prepare:
            print(f"{way}: compiled in {_artifact(way)[1]:.0f} s", flush=True)
            continue
        results[way] = _measure(way, options.seconds)
        print("\n".join(markdown_table(HEADER, list(_table_rows({way: results[way]}))).splitlines()[2:]), flush=True)
        file.write_text(json.dumps({"models": results}, indent=1) + "\n")
    if options.write and not options.prepare:
        circumstances = describe("python -m benchmarks.quantized --write") | {"threads": "1"}
        summary = "Ratios above 1: Tilewright is faster."
        write_section("quantized", section(circumstances, summary, markdown_table(HEADER, list(_table_rows(results)))))


if __name__ == "__main__":
    main()
