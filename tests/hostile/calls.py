"""Calls with arguments that make no sense."""

from pathlib import Path

import numpy as np
from onnx import helper
from tests.hostile.case import raises, works
from tests.hostile.work import compiled, model

import tilewright


def _made() -> tilewright.Executable:
    return compiled(model([helper.make_node("Relu", ["x"], ["y"])], {"x": [4, 4]}))


def _two() -> tilewright.Executable:
    return compiled(model([helper.make_node("Add", ["x", "z"], ["y"])], {"x": [4, 4], "z": [4, 4]}))


ARRAY = np.ones((4, 4), np.float32)


@raises("FeedError", "expected shape [4, 4]")
def stride_zero(place: Path) -> None:
    _made()(np.broadcast_to(np.float32(1), (1 << 16, 1 << 16)))


@raises("FeedError", "expected shape [4, 4]")
def stride_zero_by_name(place: Path) -> None:
    _made().run({"x": np.broadcast_to(np.float32(1), (1 << 40, 1 << 20))})


@works
def stride_zero_that_fits(place: Path) -> None:
    np.testing.assert_array_equal(_made()(np.broadcast_to(np.float32(-1), (4, 4))), np.zeros((4, 4)))


@raises("FeedError", "mapping")
def run_none(place: Path) -> None:
    _made().run(None)  # type: ignore[arg-type]


@raises("FeedError", "mapping")
def run_list(place: Path) -> None:
    _made().run([ARRAY])  # type: ignore[arg-type]


@raises("FeedError", "mapping")
def run_array(place: Path) -> None:
    _made().run(ARRAY)  # type: ignore[arg-type]


@raises("FeedError", "mapping")
def run_list_for_two(place: Path) -> None:
    _two().run([ARRAY, ARRAY])  # type: ignore[arg-type]


@raises("FeedError", "mapping")
def run_text(place: Path) -> None:
    _two().run("xz")  # type: ignore[arg-type]


@raises("FeedError", "mapping")
def session_run_none(place: Path) -> None:
    path = place / "model" / "m.tw"
    _made().save(path)
    tilewright.InferenceSession(path).run(None, None)  # type: ignore[arg-type]


@raises("FeedError", "output")
def run_outputs_number(place: Path) -> None:
    _made().run({"x": ARRAY}, 3)  # type: ignore[arg-type]


@raises("FeedError", "output")
def run_outputs_of_lists(place: Path) -> None:
    _made().run({"x": ARRAY}, [["y"]])  # type: ignore[list-item]


@raises("FeedError", "input")
def run_names_that_are_numbers(place: Path) -> None:
    _made().run({1: ARRAY})  # type: ignore[dict-item]


@raises("OptionError", "path")
def save_none(place: Path) -> None:
    _made().save(None)  # type: ignore[arg-type]


@raises("OptionError", "path")
def save_number(place: Path) -> None:
    _made().save(1)  # type: ignore[arg-type]


@raises("ArtifactError", "null")
def save_nul(place: Path) -> None:
    _made().save(str(place / "model" / "a\0b"))


@raises("OptionError", "path")
def load_none(place: Path) -> None:
    tilewright.load(None)  # type: ignore[arg-type]


@raises("ArtifactError", "null")
def load_nul(place: Path) -> None:
    tilewright.load("a\0b")


@raises("OptionError", "path")
def session_none(place: Path) -> None:
    tilewright.InferenceSession(None)  # type: ignore[arg-type]


@raises("OptionError", "path")
def session_number(place: Path) -> None:
    tilewright.InferenceSession(0)  # type: ignore[arg-type]
