"""The hierarchical search: ranges, rounds, and answers that fail or are known already."""

import numpy as np
import pytest
from tests.optimize.reuse.reuse_tasks import convolution_of, lowered, product_of, random_arrays, random_programs
from tests.optimize.search_tasks import failed, made_up_time, timed

from tilewright.cost.analytical import program_time
from tilewright.errors import ScheduleError
from tilewright.loops.interpreter import interpret
from tilewright.optimize.measurer import Candidate, Measurement
from tilewright.optimize.reuse.program_features import features_of
from tilewright.optimize.reuse.reusable_task import ReusableTask
from tilewright.optimize.reuse.reuse_ranges import FeatureRange, ReuseRanges, choices_in
from tilewright.optimize.reuse.reuse_search import ReuseEffort, ReuseSearch, ReuseSource
from tilewright.schedule.step import replay
from tilewright.tile.program import TileProgram


def _good_source(task: ReusableTask, rng: np.random.Generator) -> ReuseSource:
    """The best predicted one of random programs that can be lowered."""
    programs = sorted(random_programs(task, 40, rng), key=lambda p: program_time(p, task.machine))
    for program in programs:
        try:
            lowered(task, program)
        except ScheduleError:
            continue
        return ReuseSource(task, program)
    raise AssertionError("no program can be lowered")


def _run(search: ReuseSearch, count: int = 4) -> list[Candidate]:
    """All candidates, timed by the cost model."""
    candidates: list[Candidate] = []
    while batch := search.ask(count):
        candidates += batch
        programs = search.programs_of(batch)
        search.tell([_with_predicted_time(search, c, p) for c, p in zip(batch, programs, strict=True)])
    return candidates


def _with_predicted_time(search: ReuseSearch, candidate: Candidate, program: TileProgram | None) -> Measurement:
    assert program is not None
    return timed(candidate, program_time(program, search.reusable.machine))


PAIRS = {
    "larger product": lambda: (product_of(24, 48, 40), product_of(48, 96, 80)),
    "smaller product": lambda: (product_of(48, 96, 80), product_of(24, 48, 40)),
    "other epilogue": lambda: (product_of(48, 96, 80), product_of(48, 96, 80, True)),
    "larger convolution": lambda: (convolution_of(6, 16, 14), convolution_of(12, 32, 28)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_candidates_lie_in_the_ranges_and_are_right(name: str) -> None:
    source_task, target = PAIRS[name]()
    rng = np.random.default_rng()
    source = _good_source(source_task, rng)
    effort = ReuseEffort(blocks=2, threads=2)
    search = ReuseSearch(target, source, effort)
    ranges, theirs = ReuseRanges.of(target.vector, source_task.vector), features_of(source.program)
    candidates = _run(search)
    assert 0 < len(candidates) <= effort.blocks * (effort.threads + effort.chunks + 8)
    assert len({str(c.trace) for c in candidates}) == len(candidates) == search.trials
    blocks = [float(features_of(p).blocks) for p in search.programs_of(candidates) if p is not None]
    limits = ranges.blocks.scaled(float(theirs.blocks))
    # one wider at both ends, or all of them the next number past the upper end
    assert all(limits.lowest - 1 <= b <= limits.highest + 1 for b in blocks) or len(set(blocks)) == 1
    _assert_right(target, candidates[int(rng.integers(len(candidates)))], rng)


def _assert_right(task: ReusableTask, candidate: Candidate, rng: np.random.Generator) -> None:
    """A candidate computes what the untransformed loops compute."""
    func = task.task.func
    arrays = random_arrays(func, rng)
    results = []
    for f in (func, replay(func, candidate.trace)):
        copies = {name: a.copy() for name, a in arrays.items()}
        interpret(f, copies, {}, seed=3)
        results.append(copies[func.params[-1].name])
    np.testing.assert_array_equal(*results)


def test_a_task_with_another_epilogue_gets_programs_about_as_fast_as_the_source() -> None:
    source = _good_source(product_of(48, 96, 80), np.random.default_rng())
    search = ReuseSearch(product_of(48, 96, 80, True), source)
    _run(search)
    fastest = search.best
    assert fastest is not None
    (program,) = search.programs_of([fastest.candidate])
    assert program is not None
    assert program_time(program, search.reusable.machine) <= 1.5 * program_time(source.program, search.reusable.machine)


def test_equal_searches_ask_equal_candidates() -> None:
    source = _good_source(product_of(24, 48, 40), np.random.default_rng(5))
    first, again = (_run(ReuseSearch(product_of(48, 96, 80), source), count) for count in (4, 4))
    assert first == again


def test_what_was_told_before_is_not_asked_again() -> None:
    source = _good_source(product_of(24, 48, 40), np.random.default_rng())
    target = product_of(48, 96, 80)
    search = ReuseSearch(target, source)
    history = [timed(c, made_up_time(c)) for c in search.ask(3)]
    resumed = ReuseSearch(target, source)
    resumed.tell(history)
    # a batch is of one round, which may have fewer programs
    assert resumed.trials == len(history) > 0
    assert resumed.best == min(history, key=lambda m: m.nanoseconds or 0.0)
    assert not {m.candidate for m in history} & set(_run(resumed))


def test_a_search_whose_candidates_all_fail_ends() -> None:
    search = ReuseSearch(product_of(48, 96, 80), _good_source(product_of(24, 48, 40), np.random.default_rng()))
    count = 0
    while batch := search.ask(8):
        search.tell([failed(c) for c in batch])
        count += len(batch)
    assert 0 < count < 64
    assert search.best is None
    assert search.ask(1) == []


def test_ranges_and_choices() -> None:
    ranges = ReuseRanges.of(product_of(48, 96, 80).vector, product_of(24, 48, 40).vector)
    assert ranges.blocks == FeatureRange(0.5, 8.0)
    assert ranges.threads == ranges.memory == FeatureRange(1.0, 8.0)
    assert choices_in((1, 2, 4, 8, 16), FeatureRange(3.5, 7.2)) == (4, 8)
    assert choices_in((1, 2, 16), FeatureRange(4.5, 7.2)) == (16,)
    assert choices_in((1, 2), FeatureRange(4.5, 7.2)) == (2,)
    assert choices_in((1, 7, 9), FeatureRange(6.0, 7.0)) == (7, 9)
