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
from tilewright.graph.program import Fallback, Loop, Program

RNG = np.random.default_rng(41)


def path(package: str, file: str) -> str:
    """A model inside an installed package."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return str(Path(spec.origin).parent / "models" / file)


def program(package: str, file: str, shapes=None) -> tuple[Program, str]:
    actual = path(package, file)
    result = lower_graph(simplify_graph(load_onnx(actual, shapes)))
    assert not any(isinstance(s, Fallback) for s in result.steps)
    return result, actual


def ranges(program: Program) -> dict[str, int | None]:
    return {program.symbol_names[s.name]: s.lo for s in program.symbols}


def assert_like_onnxruntime(program: Program, file: str, feeds: dict[str, np.ndarray]) -> None:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for actual, expected in zip(run_program(program, feeds), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-5)


PPOCR = "rapidocr_onnxruntime"


def test_text_detection():
    actual, _ = program(PPOCR, "ch_PP-OCRv4_det_infer.onnx")
    height, width = "p2o_DynamicDimension_1", "p2o_DynamicDimension_2"
    assert str(actual.outputs[0][1]).endswith(
        f"float32[p2o_DynamicDimension_0, 1, ({height} + 3) // 4 * 4, ({width} + 3) // 4 * 4]"
    )
    assert set(ranges(actual)) == {"p2o.DynamicDimension.0", "p2o.DynamicDimension.1", "p2o.DynamicDimension.2"}


def test_text_recognition():
    actual, _ = program(PPOCR, "ch_PP-OCRv4_rec_infer.onnx")
    assert str(actual.outputs[0][1]).endswith(
        "float32[p2o_DynamicDimension_0, (p2o_DynamicDimension_1 + 3) // 8, 6625]"
    )
    # A placeholder is a dimension of its own, and the model works for one line of text only.
    height = next(s for s in actual.symbols if actual.symbol_names[s.name] == "x[2]")
    assert (height.lo, height.hi) == (33, 80)
    assert not actual.constraints
    assert actual.metadata["custom:character"].count("\n") > 6000


def test_text_direction():
    actual, file = program(PPOCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx")
    assert str(actual.outputs[0][1]).endswith("float32[x_0, 2]")
    assert list(ranges(actual)) == ["x[0]", "x[2]", "x[3]"]
    assert_like_onnxruntime(actual, file, {"x": RNG.normal(size=(2, 3, 36, 20)).astype(np.float32)})


def test_a_fixed_image_size_leaves_no_symbols():
    actual, _ = program(PPOCR, "ch_PP-OCRv4_det_infer.onnx", {"x": "1x3x64x96"})
    assert not actual.symbols
    assert not actual.constraints
    assert str(actual.outputs[0][1]).endswith("float32[1, 1, 64, 96]")


def test_file_types():
    folder = Path(path("magika", ""))
    file = next(folder.glob("*/model.onnx"))
    actual, _ = program("magika", str(file.relative_to(folder)))
    assert str(actual.outputs[0][1]).endswith("float32[unk__214, 214]")


ZOO = sorted((Path(__file__).parents[2] / "build" / "zoo").glob("*/model.onnx"))


SMALL = [f for f in ZOO if sum(part.stat().st_size for part in f.parent.iterdir()) < 100 << 20]


@pytest.mark.filterwarnings("ignore:shapes that the model declares are not what it computes")
@pytest.mark.parametrize("file", SMALL, ids=lambda f: f.parent.name)
def test_models_of_the_zoo_that_are_built(file):
    graph = load_onnx(file)
    actual = lower_graph(simplify_graph(graph))
    assert not any(isinstance(s, Fallback) for s in actual.steps)
    stacked = {v.name for s in actual.steps if isinstance(s, Loop) for v in s.data_symbols}
    assert {s.name for s in actual.symbols} - stacked <= {s.name for s in graph.symbols}


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
        process = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        )
        texts.add(process.stdout)
    assert len(texts) == 1
    assert len(texts.pop()) > 10_000
