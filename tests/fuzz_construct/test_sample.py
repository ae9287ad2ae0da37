"""A sample of random operators, the same in every run; and that a wrong one would be noticed, replayed and shrunk."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fuzz.__main__ import again
from tests.fuzz.campaign import Outcome, smallest
from tests.fuzz.case import Case, Tally
from tests.fuzz.check import WrongError
from tests.fuzz.serving import result_of
from tests.fuzz_construct import check as checking
from tests.fuzz_construct.__main__ import OPERATORS
from tests.fuzz_construct.builder import Sizes
from tests.fuzz_construct.check import check, random_case, random_model, understood
from tests.fuzz_construct.operators import KINDS
from tests.fuzz_construct.sample import is_fast

from tilewright.errors import ScheduleError
from tilewright.expr.nodes import const
from tilewright.graph.winograd import rewrite
from tilewright.loops.ir import Block
from tilewright.lower.prepack_constants import PrepackedKernel, prepack_constants
from tilewright.optimize.construct import lower_programs
from tilewright.schedule.rewrite_tree import map_blocks

SEED, CHUNKS, EACH = 20, 5, 5

PLAIN = {"whole": True, "dtype": "float32", "optimizer": "gensor", "target": "x86-64", "by kernel": True, "walks": 1,
         "m": 6, "n": 19, "k": 4, "A constant": False, "B constant": True}  # fmt: skip


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_constructed_operators_compute_what_they_mean(chunk: int) -> None:
    for index in range(chunk * EACH, (chunk + 1) * EACH):
        check(random_case(SEED, index))


@pytest.mark.parametrize("kind", KINDS)
def test_the_simplest_operator_of_every_kind(kind: str) -> None:
    check(understood(Case(kind, {})))


def test_equal_numbers_draw_equal_cases_that_travel_as_json() -> None:
    for index in range(30):
        case = random_case(3, index)
        assert random_case(3, index) == case
        assert understood(Case.from_json(json.loads(json.dumps(case.to_json())))) == case


def test_choices_out_of_range_are_understood_and_unknown_ones_left_out() -> None:
    case = understood(Case("gemm", {**PLAIN, "m": 5000, "k": -1, "nonsense": 3}))
    assert case.record["m"] == 130
    assert case.record["k"] == 1
    assert "nonsense" not in case.record


def one_too_many(func: Any, constants: frozenset[str]) -> PrepackedKernel:
    """A kernel whose results are one too large."""
    split = prepack_constants(func, constants)
    out = func.outputs[-1]

    def wrong(b: Block) -> Block:
        return replace(b, body=replace(b.body, value=b.body.value + const(1, out.dtype))) if b.body.buffer == out else b

    return replace(split, func=split.func.with_body(map_blocks(split.func.body, wrong)))


def test_a_wrong_kernel_is_noticed_and_the_case_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "prepack_constants", one_too_many)
    with pytest.raises(WrongError, match=r"kernel x86-64: .* expected .*; 114 of 114 wrong"):
        check(Case("gemm", PLAIN))

    def ask(job: dict[str, Any]) -> Outcome:
        sent: list[dict[str, Any]] = []
        place_and_error = result_of(job, sent.append, random_case, understood, check)["failure"]
        return Outcome(sent[-1]["case"], tuple(place_and_error) if place_and_error else None)

    small, failure = smallest(Case("gemm", PLAIN).to_json(), ("kernel x86-64", ""), ask)
    assert [small["record"][n] for n in ("m", "n", "k")] == [1, 1, 1]
    assert failure[0] == "kernel x86-64"


def test_programs_that_can_not_be_lowered_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> Any:
        raise ScheduleError("it is not legal", where="split")

    monkeypatch.setattr(lower_programs, "lower_kernel_program", refuse)
    tally: Tally = {}
    check(Case("gemm", PLAIN), tally)
    # the driver has compiled the kernel before it is constructed alone
    assert tally == {"gemm": [0, 1], "gemm, refused": [6, 2]}
    assert "can't be lowered: [schedule] split: it is not legal" in capsys.readouterr().err


def test_a_result_that_is_no_number_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any, **__: Any) -> dict[str, Any]:
        return {"t0": np.full((6, 19), np.nan, np.float32)}

    monkeypatch.setattr(checking.Executable, "run", nothing)
    with pytest.raises(WrongError, match=r"driver x86-64: .*114 of 114 wrong"):
        check(Case("gemm", {**PLAIN, "by kernel": False}))


def test_what_an_earlier_call_left_in_memory_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    run, left = checking.Executable.run, list[Any]()

    def stale(self: Any, feeds: Any) -> Any:
        left.append(run(self, feeds))
        return left[0]

    monkeypatch.setattr(checking.Executable, "run", stale)
    with pytest.raises(WrongError, match=r"driver x86-64: .* wrong"):
        check(Case("gemm", {**PLAIN, "by kernel": False}))


FAST = {"optimizer": "roller", "target": "x86-64", "winograd": "fast", "forced": True, "by kernel": True, "walks": 1,
        "dtype": "float32", "rank": 2, "plain": True, "kernel y": 3, "kernel x": 3, "size y": 9, "size x": 13, "cin": 3,
        "cout": 5}  # fmt: skip


@pytest.mark.parametrize("whole", [False, True])
def test_minimal_filtering_is_checked_and_its_meaning_too(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("convolution", {**FAST, "whole": whole})
    model, way = random_model(case)
    assert is_fast(way.compiled(model))
    assert not is_fast(replace(way, forced=False, exact=True, winograd=None).compiled(model))
    check(case)
    original = rewrite.transform_weights
    monkeypatch.setattr(rewrite, "transform_weights", lambda *a: original(*a) * np.float32(1.1))
    with pytest.raises(WrongError, match=r"meaning: .* computes something else"):
        check(case)


def test_symbolic_sizes_run_at_several_values() -> None:
    model, _ = random_model(Case("gemm", {**PLAIN, "m symbolic": True, "m": 40}))
    shapes = {which: model.feeds(3, which)["A"].shape for which in Sizes}
    assert shapes[Sizes.DRAWN] == (40, 4)
    assert shapes[Sizes.LEAST] == (1, 4)
    assert shapes[Sizes.OTHER] not in (shapes[Sizes.DRAWN], shapes[Sizes.LEAST])


def test_a_file_is_replayed_in_a_process_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "case.json"
    file.write_text(json.dumps({"case": Case("gemm", PLAIN).to_json()}))
    assert again(file, smaller=False, kind=OPERATORS) == 0
    shown = capsys.readouterr().out
    assert "Gemm" in shown
    assert "passed" in shown
