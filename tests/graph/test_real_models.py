"""Models by other authors: they load, all nodes have definitions, shapes are expressions over the inputs' symbols."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from tests.graph.running import run_program

from tilewright.frontend.onnx import load_onnx
from tilewright.graph.lower import lower_graph
from tilewright.graph.passes import simplify_graph
from tilewright.graph.program import Fallback, Program

RNG = np.random.default_rng(41)


def path(package: str, file: str) -> str:
    """A model inside an installed package."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return str(Path(spec.origin).parent / "models" / file)


def program(package: str, file: str, shapes=None) -> tuple[Program, str]:
    found = path(package, file)
    result = lower_graph(simplify_graph(load_onnx(found, shapes)))
    assert not any(isinstance(s, Fallback) for s in result.steps)
    return result, found


def ranges(found: Program) -> dict[str, int | None]:
    return {found.symbol_names[s.name]: s.lo for s in found.symbols}


def assert_like_onnxruntime(found: Program, file: str, feeds: dict[str, np.ndarray]) -> None:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for got, wanted in zip(run_program(found, feeds), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-5)


PPOCR = "rapidocr_onnxruntime"


def test_text_detection():
    found, _ = program(PPOCR, "ch_PP-OCRv4_det_infer.onnx")
    height, width = "p2o_DynamicDimension_1", "p2o_DynamicDimension_2"
    assert str(found.outputs[0][1]).endswith(
        f"float32[p2o_DynamicDimension_0, 1, ({height} + 3) // 4 * 4, ({width} + 3) // 4 * 4]"
    )
    assert set(ranges(found)) == {"p2o.DynamicDimension.0", "p2o.DynamicDimension.1", "p2o.DynamicDimension.2"}


def test_text_recognition():
    found, _ = program(PPOCR, "ch_PP-OCRv4_rec_infer.onnx")
    assert str(found.outputs[0][1]).endswith("float32[p2o_DynamicDimension_0, (p2o_DynamicDimension_1 + 3) // 8, 6625]")
    # A placeholder is a dimension of its own, and the model works for one line of text only.
    height = next(s for s in found.symbols if found.symbol_names[s.name] == "x[2]")
    assert (height.lo, height.hi) == (33, 80)
    assert not found.constraints
    assert found.metadata["custom:character"].count("\n") > 6000


def test_text_direction():
    found, file = program(PPOCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx")
    assert str(found.outputs[0][1]).endswith("float32[x_0, 2]")
    assert list(ranges(found)) == ["x[0]", "x[2]", "x[3]"]
    assert_like_onnxruntime(found, file, {"x": RNG.normal(size=(2, 3, 36, 20)).astype(np.float32)})


def test_a_fixed_image_size_leaves_no_symbols():
    found, _ = program(PPOCR, "ch_PP-OCRv4_det_infer.onnx", {"x": "1x3x64x96"})
    assert not found.symbols
    assert not found.constraints
    assert str(found.outputs[0][1]).endswith("float32[1, 1, 64, 96]")


def test_file_types():
    folder = Path(path("magika", ""))
    file = next(folder.glob("*/model.onnx"))
    found, _ = program("magika", str(file.relative_to(folder)))
    assert str(found.outputs[0][1]).endswith("float32[unk__214, 214]")


ZOO = sorted((Path(__file__).parents[2] / "build" / "zoo").glob("*/model.onnx"))


SMALL = [f for f in ZOO if sum(part.stat().st_size for part in f.parent.iterdir()) < 100 << 20]


@pytest.mark.parametrize("file", SMALL, ids=lambda f: f.parent.name)
def test_models_of_the_zoo_that_are_built(file):
    graph = load_onnx(file)
    found = lower_graph(simplify_graph(graph))
    assert not any(isinstance(s, Fallback) for s in found.steps)
    assert {s.name for s in found.symbols} <= {s.name for s in graph.symbols}


def test_lowering_is_the_same_in_every_process():
    file = path(PPOCR, "ch_PP-OCRv4_rec_infer.onnx")
    code = f"""
from tilewright.frontend.onnx import load_onnx
from tilewright.graph.lower import lower_graph
from tilewright.graph.passes import simplify_graph
p = lower_graph(simplify_graph(load_onnx({file!r})))
print(*p.steps, *p.constraints, *p.constants, p.symbols, sep=chr(10))
"""
    texts: set[bytes] = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        )
        texts.add(done.stdout)
    assert len(texts) == 1
    assert len(texts.pop()) > 10_000
