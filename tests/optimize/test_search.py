"""Searches of a task: which candidates they ask for, what they make of answers, and that they can be resumed."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.optimize.search_tasks import (
    MACHINE,
    RANGED,
    STAGES,
    begin,
    failed,
    made_up_time,
    run_rounds,
    search_task,
    timed,
)

from tilewright.errors import OptionError, SearchWarning, VerifyError
from tilewright.loops.ir import For, Func, LoopKind, walk
from tilewright.optimize.chains.optimizer import ChainOptimizer
from tilewright.optimize.construct.optimizer import Gensor
from tilewright.optimize.measurer import Candidate
from tilewright.optimize.rule import Rule
from tilewright.optimize.search import learned_strategy, program_search, start_search
from tilewright.optimize.search.constructed_starts import constructed_starts
from tilewright.optimize.search.interface import SearchVariant
from tilewright.optimize.search.measurement_history import trace_key
from tilewright.optimize.search.program_search import loops_digest
from tilewright.optimize.search.program_space import ProgramSpace
from tilewright.schedule.step import Step, replay
from tilewright.verify.verifier import verify

KINDS = tuple(STAGES)
VARIANTS = tuple(map(str, SearchVariant))


@pytest.fixture(autouse=True)
def learns_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are learned from the second batch on."""
    monkeypatch.setattr(learned_strategy, "MIN_OBSERVATIONS", 4)


def keys(candidates: Sequence[Candidate]) -> list[str]:
    return [trace_key(c.trace) for c in candidates]


def space_of(kind: str) -> ProgramSpace:
    space = ProgramSpace.of(search_task(kind), MACHINE)
    assert space is not None
    return space


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(KINDS), st.sampled_from(VARIANTS), st.integers(0, 1000))
def test_candidates_are_legal_and_no_two_have_equal_loops(kind: str, variant: str, seed: int) -> None:
    task = search_task(kind)
    search = begin(task, variant, seed)
    candidates = [m.candidate for m in run_rounds(search, 2, 6)]
    funcs = [replay(task.func, c.trace) for c in candidates]
    for func in funcs:
        verify(func)
    assert len({loops_digest(f) for f in funcs}) == len(funcs)
    assert search.trials == len(funcs) > 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_searches_depend_on_their_seed_alone(variant: str) -> None:
    task = search_task("product")
    first, again, other = (begin(task, variant, seed) for seed in (3, 3, 4))
    histories = [[trace_key(m.candidate.trace) for m in run_rounds(s, 2, 8)] for s in (first, again, other)]
    assert histories[0] == histories[1]
    assert histories[0][1:] != histories[2][1:]


@pytest.mark.parametrize(
    ("variant", "measured"), [("random", 5), ("evolution", 8), ("search", 13), ("ansor", 5), ("ansor", 16)]
)
def test_a_search_resumed_by_its_history_goes_on_where_it_was(variant: str, measured: int) -> None:
    """Also where a batch was measured in part."""
    task = search_task("convolution")
    whole = [m.candidate for m in run_rounds(begin(task, variant), 3, 8)]
    history = run_rounds(begin(task, variant), 2, 8)[:measured]
    resumed = begin(task, variant, history=history)
    assert resumed.trials == measured
    asked = resumed.ask(8)
    expected = whole[measured : 8 * (measured // 8 + 1)]
    assert keys(asked) == keys(expected)


def test_a_history_of_another_search_is_never_asked_for() -> None:
    task = search_task("rows")
    others = run_rounds(begin(task, "random", 1), 2, 4)
    search = begin(task, "random", 2, history=others)
    asked = [c for _ in range(40) for c in search.ask(8)]
    assert not set(keys(asked)) & set(keys([m.candidate for m in others]))
    assert search.ask(8) == []
    without_history = begin(task, "random", 2)
    every = [c for _ in range(40) for c in without_history.ask(8)]
    assert set(keys(every)) == set(keys(asked)) | set(keys([m.candidate for m in others]))


def test_the_best_is_the_fastest_that_did_not_fail() -> None:
    search = begin(search_task("product"), "random")
    assert search.best is None
    batch = search.ask(6)
    search.tell([failed(c) for c in batch[:2]])
    assert search.best is None
    answers = [timed(c, made_up_time(c)) for c in batch[2:]]
    search.tell(answers)
    search.tell(answers)
    assert search.trials == 6
    assert search.best == min(answers, key=lambda m: m.nanoseconds or 0.0)
    assert [o.nanoseconds for o in search.observations[:2]] == [None, None]


def test_searches_go_on_where_everything_fails() -> None:
    search = begin(search_task("product"), "evolution")
    for _ in range(2):
        batch = search.ask(8)
        assert len(batch) == 8
        search.tell([failed(c) for c in batch])
    assert search.best is None


def test_ranked_programs_are_faster_than_random_ones() -> None:
    """By the cost model, which stands for the clock; the search from nothing ranks by it from the first batch on."""
    means: dict[str, float] = {}
    for variant in ("random", "evolution", "ansor"):
        search = begin(search_task("product"), variant)
        for _ in range(2):
            batch = search.ask(12)
            programs = [p for p in search.programs_of(batch) if p is not None]
            assert search.space is not None
            times = search.space.predicted_times(programs)
            search.tell([timed(c, t) for c, t in zip(batch, times, strict=True)])
        means[variant] = float(np.mean([o.nanoseconds or 0.0 for o in search.observations]))
    assert max(means["evolution"], means["ansor"]) < 0.95 * means["random"]


def test_a_search_that_learns_asks_for_few_programs_while_little_is_known() -> None:
    search = begin(search_task("product"), "ansor")
    sizes: list[int] = []
    for _ in range(7):
        batch = search.ask(100)
        sizes.append(len(batch))
        search.tell([timed(c, made_up_time(c)) for c in batch])
    assert sizes == [16, 16, 16, 16, 16, 20, 25]
    assert len(begin(search_task("product"), "random").ask(100)) == 100


def test_starts_are_asked_for_first_without_those_that_are_not_legal() -> None:
    task = search_task("product")
    schedule = Rule().optimize(task)
    assert schedule is not None
    starts = [Candidate((Step("parallel", ("nowhere",)),)), Candidate(schedule.trace), Candidate(schedule.trace)]
    search = begin(task, "random", starts=starts)
    first, *others = search.ask(4)
    assert first.trace == schedule.trace
    assert len(others) == 3
    search.tell([timed(first, 1.0)])
    assert search.best is not None
    assert search.best.candidate == first


def test_what_the_verifier_refuses_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[Func] = []

    def refuse_every_second(func: Func) -> None:
        refused.append(func)
        if len(refused) % 2:
            raise VerifyError("wrong", where=func.name)
        verify(func)

    monkeypatch.setattr(program_search, "verify", refuse_every_second)
    search = begin(search_task("transposed"), "random")
    asked = search.ask(6)
    assert len(asked) == 6
    assert len(refused) == 12
    again = {loops_digest(replay(search.task.func, c.trace)) for c in asked}
    assert not again & {loops_digest(f) for f in refused[::2]}


@pytest.mark.parametrize("variant", SearchVariant)
def test_a_task_without_a_space_is_answered_with_the_starts(variant: str) -> None:
    task = search_task("none")
    assert ProgramSpace.of(task, MACHINE) is None
    schedule = Rule().optimize(task)
    assert schedule is not None
    search = begin(task, variant, starts=[Candidate(schedule.trace)])
    assert keys(search.ask(5)) == keys([Candidate(schedule.trace)])
    assert search.ask(5) == []


def test_unknown_variants_are_refused() -> None:
    with pytest.raises(OptionError, match=r"no search 'annealing'.*use one of search, ansor, evolution, random"):
        begin(search_task("rows"), "annealing")


def without_xgboost() -> None:
    raise OptionError("searches with a learned model need XGBoost", where="search", hint="pip install it")


def test_without_xgboost_the_analytical_model_ranks_and_ansor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_search, "load_xgboost", without_xgboost)
    with pytest.warns(SearchWarning, match="need XGBoost; the analytical cost model ranks programs alone"):
        search = begin(search_task("product"), "search")
    assert len(search.ask(3)) == 3
    with pytest.raises(OptionError, match="need XGBoost"):
        begin(search_task("product"), "ansor")
    assert len(begin(search_task("product"), "evolution").ask(3)) == 3


@pytest.mark.parametrize(("variant", "is_threaded"), [("search", True), ("ansor", False)])
def test_searches_learn_what_the_analytical_model_has_wrong(variant: str, is_threaded: bool) -> None:
    """Programs with threads, or those without, take a twentieth of the time that is predicted: later batches have more
    of them."""
    search = begin(search_task("transposed"), variant)
    shares: list[float] = []
    for _ in range(4):
        batch = search.ask(12)
        programs = search.programs_of(batch)
        for candidate, program in zip(batch, programs, strict=True):
            assert search.space is not None
            predicted = 1e5 if program is None else search.space.predicted_times([program])[0]
            is_fast = program is not None and program.parallel == is_threaded
            search.tell([timed(candidate, predicted * (0.05 if is_fast else 1.0))])
        shares.append(float(np.mean([p is not None and p.parallel == is_threaded for p in programs])))
    assert shares[-1] > max(0.6, shares[0])


@pytest.mark.parametrize("kind", KINDS)
def test_programs_with_threads_and_without(kind: str) -> None:
    space = space_of(kind)
    rng = np.random.default_rng(0)
    programs = space.random(40, rng)
    assert {p.parallel for p in programs} == {False, True}
    for program in programs[:6]:
        loops = [x for x, _ in walk(space.schedule(program).func.body) if isinstance(x, For)]
        assert any(x.kind is LoopKind.PARALLEL for x in loops) == program.parallel
    alone = ProgramSpace.of(replace(space.task, threads=1), MACHINE)
    assert alone is not None
    assert not any(p.parallel for p in [*alone.random(20, rng), *alone.mutate(alone.random(20, rng), rng)])
    assert alone.machine.cores == 1


@pytest.mark.parametrize("kind", KINDS)
def test_mutations_are_programs_and_differ(kind: str) -> None:
    space = space_of(kind)
    rng = np.random.default_rng(1)
    parents = space.random(60, rng)
    children = space.mutate(parents, rng)
    assert len(children) == len(parents)
    assert sum(a != b for a, b in zip(parents, children, strict=True)) > 10
    assert np.isfinite(space.predicted_times(children)).all()
    assert {space.sketch_name(p) for p in children} <= {space.sketch_name(p) for p in space.random(600, rng)}
    for child in children[:5]:
        verify(space.schedule(child).func)
        assert space.describe(child)


def test_measurements_told_before_they_are_asked_for_count_once() -> None:
    task = search_task("product")
    reference = begin(task, "random").ask(8)
    search = begin(task, "random")
    search.tell([timed(c, 5.0) for c in reference[4:]])
    asked = search.ask(8)
    assert keys(asked) == keys(reference[:4])
    assert len(search.observations) == 4
    search.tell([timed(c, 6.0) for c in reference])
    assert search.trials == 8
    assert len(search.observations) == 8


@pytest.mark.parametrize("kind", [*KINDS, "none"])
def test_the_search_begins_with_what_compilation_takes_without_tuning(kind: str) -> None:
    task = search_task(kind)
    schedule = Gensor(MACHINE).optimize(task) or Rule().optimize(task)
    assert schedule is not None
    search = begin(task, "search")
    first = search.ask(1)
    assert keys(first) == keys([Candidate(schedule.trace)])
    search.tell([timed(first[0], 1.0)])
    assert keys(first)[0] not in keys(search.ask(3))


def test_the_search_changes_constructed_programs() -> None:
    task = search_task("convolution")
    space = space_of("convolution")
    starts = constructed_starts(task, MACHINE, space)
    assert starts.programs
    assert len(starts.population) > 10
    times = space.predicted_times(starts.population)
    assert times == sorted(times)
    best = space.predicted_times(starts.programs)[0]
    assert times[0] == pytest.approx(best)
    assert best < min(space.predicted_times(space.random(200, np.random.default_rng(0))))


@pytest.mark.parametrize("variant", ["search", "ansor", "evolution"])
@pytest.mark.parametrize("kind", ["chain", *RANGED])
def test_chains_and_ranges_are_searched(kind: str, variant: str) -> None:
    task = search_task(kind)
    search = begin(task, variant)
    candidates = [m.candidate for m in run_rounds(search, 2, 6)]
    funcs = [replay(task.func, c.trace) for c in candidates]
    for func in funcs:
        verify(func)
    assert len({loops_digest(f) for f in funcs}) == len(funcs) > 4
    assert all(search.describe(c) for c in candidates[1:]) or variant == "search"


def test_the_search_of_a_chain_begins_with_its_constructed_tiling() -> None:
    task = search_task("chain")
    schedule = ChainOptimizer(machine=MACHINE).optimize(task)
    space = ProgramSpace.of(task, MACHINE)
    assert schedule is not None
    assert space is not None
    starts = constructed_starts(task, MACHINE, space)
    assert starts.candidates == (Candidate(schedule.trace),)
    assert len(starts.population) > 5
    assert {p.parallel for p in starts.population} == {True}
    assert trace_key(space.schedule(starts.programs[0]).trace) == trace_key(schedule.trace)
    parents = space.random(40, np.random.default_rng(0))
    children = space.mutate(parents, np.random.default_rng(1))
    assert len(parents) == 40
    assert sum(a != b for a, b in zip(parents, children, strict=True)) > 10
    assert np.isfinite(space.features(children).rows).all()
    assert np.isfinite(space.predicted_times(children)).all()
