"""Programs constructed by `roller` and `gensor`: semantics, well-formedness, determinism, trajectories."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.optimize import programs
from tests.optimize.computations import KERNELS, M, N, S, column_sums, image, product, products_of_pictures, relu
from tests.optimize.programs import Program, check, scheduled
from tests.optimize.tasks import QUICK, optimizers, task_of

from tilewright.cost.analytical import program_times
from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.nodes import Const, MemoryScope, Var
from tilewright.loops.ir import LoopKind
from tilewright.loops.printer import show
from tilewright.machine import Target
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.elementwise_sketches import elementwise_sketches
from tilewright.optimize.construct.gensor import Annealing, Reading, cache_weight, record_probability, run_walks
from tilewright.optimize.construct.local_search import neighbours, search_locally
from tilewright.optimize.construct.lock_step import run
from tilewright.optimize.construct.optimizer import (
    K_BLOCK_SHRINK_STEPS,
    MAX_LOWERING_TRIES,
    MAX_SKETCHES,
    ConstructionResult,
    Gensor,
    Roller,
    search_spaces,
)
from tilewright.optimize.interface import optimizer_named
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem, ProblemAxis, extract_problem
from tilewright.tile.program import L1, L2, LEVELS, REGISTER, is_legal, size_tuples


@pytest.mark.parametrize("kind", ["reduction", "gemm", "conv", "pool"])
def test_constructed_programs_preserve_semantics(kind: str) -> None:
    @settings(max_examples=25)
    @given(getattr(programs, kind)(), st.sampled_from(programs.TARGETS), st.integers(0, 99))
    def run(program: Program, target: str, seed: int) -> None:
        for optimizer in optimizers(target, seed):
            check(program, target, optimizer, any_kind=True)  # some have no affine accesses, or one point

    run()


@pytest.mark.parametrize("target", programs.TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_typical_kernels_preserve_semantics(name: str, target: str) -> None:
    for optimizer in optimizers(target):
        check(KERNELS[name], target, optimizer)


@pytest.mark.parametrize("size", [(37, 53, 61), (14, 32, 300), (1, 97, 8), (97, 1, 8), (64, 64, 512)])
@pytest.mark.parametrize("constant", [True, False])
def test_matmul_of_any_size(size: tuple[int, int, int], constant: bool) -> None:
    m, n, k = size
    program = Program([product(m, n, k), relu(product(m, n, k))], {}, frozenset({"w"} if constant else ()))
    for optimizer in optimizers("x86-64-v4"):
        check(program, "x86-64-v4", optimizer)


@pytest.mark.parametrize("rows", [1, 3, 8, 29])
def test_symbolic_rows(rows: int) -> None:
    program = Program([product(M, 40, 5), relu(product(M, 40, 5))], {M: rows}, frozenset({"w"}))
    for optimizer in optimizers("x86-64-v4"):
        check(program, "x86-64-v4", optimizer)
    for optimizer in optimizers("x86-64-v3"):
        check(Program([product(N, 40, 5)], {N: min(rows, 4)}, frozenset({"w"})), "x86-64-v3", optimizer)


@pytest.mark.parametrize("size", [16, 17, 31])
def test_all_sizes_symbolic(size: int) -> None:
    for optimizer in optimizers("x86-64-v4"):
        check(Program([product(S, S, S), relu(product(S, S, S))], {S: size}), "x86-64-v4", optimizer)


@pytest.mark.parametrize("name", ["matmul", "convolution"])
def test_construction_is_deterministic_per_task_and_seed(name: str) -> None:
    for optimizer in (*optimizers("x86-64-v4"), *optimizers("x86-64-v4", 1)):
        first, second = (scheduled(KERNELS[name], "x86-64-v4", optimizer)[2] for _ in range(2))
        assert first.trace == second.trace
        assert show(first.func) == show(second.func)


def test_accumulators_fit_the_register_file() -> None:
    for m, n, k in ((512, 512, 512), (28, 64, 40), (50, 50, 50), (3, 48, 64)):
        for optimizer in optimizers("x86-64-v4"):
            _, _, s = scheduled(Program([product(m, n, k)], {}, frozenset({"w"})), "x86-64-v4", optimizer)
            accumulators = [b for b in s.func.allocs if b.scope is MemoryScope.REGISTER]
            assert accumulators
            for b in accumulators:
                size = np.prod([int(x.value) for x in b.shape if isinstance(x, Const)])
                assert size * 32 <= 512 * 31


def constructed(program: Program, optimizer: Roller | Gensor) -> ConstructionResult:
    result = optimizer.construct(task_of(program))
    assert result is not None
    return result


def large() -> Program:
    return Program([product(512, 512, 512)], {}, frozenset({"w"}))


def test_large_matmul_gets_a_large_register_tile_and_is_parallel() -> None:
    best = constructed(large(), Gensor(machine_named("zen5"))).programs[0]
    rows, lanes = best.sizes[REGISTER][0], best.sizes[REGISTER][1]
    assert 20 <= rows * lanes / 16 <= 30
    assert best.sketch.packed
    assert np.prod(best.sizes[L2][:2]) < 512 * 512
    _, _, s = scheduled(large(), "x86-64-v4", Gensor(machine_named("zen5")))
    assert any(step.primitive == "parallel" for step in s.trace)


def test_gensor_is_at_most_five_percent_slower_than_roller() -> None:
    for program in (large(), Program([image(1, 64, 64, 30, 3)], {}, frozenset({"w"})), KERNELS["column_maxima"]):
        machine = machine_named("zen5")
        walked, grown = constructed(program, Gensor(machine)), constructed(program, Roller(machine))
        assert walked.nanoseconds[0] <= grown.nanoseconds[0] * 1.05


@pytest.mark.parametrize("size", [(128, 2048, 49, 512), (128, 512, 784, 128), (128, 1024, 196, 256)])
def test_pruned_sketches_hold_no_much_better_program(size: tuple[int, int, int, int]) -> None:
    machine, task = machine_named("x86-64-v4").with_cores(2), task_of(products_of_pictures(*size))
    best = constructed(products_of_pictures(*size), Gensor(machine)).nanoseconds[0]
    problem = extract_problem(task.func, task.constants)
    assert problem is not None
    spaces = search_spaces(problem, task, machine)
    assert len(spaces) > MAX_SKETCHES
    for space, sketches in spaces.items():
        states = run_walks(space, Annealing(), 0).recorded_states()
        assert best <= 1.03 * min(
            search.nanoseconds for sketch in sketches for search in run(search_locally(space, sketch, states))
        )


@pytest.mark.parametrize(("rows", "max_k_block"), [(64, 64), (512, 32), (4096, 128), (509, 44), (1018, 62)])
def test_long_streaming_sums_are_k_blocked(rows: int, max_k_block: int) -> None:
    """K-blocks of about twice the root of the number of terms, whether they divide it or not; unblocked sums err by the
    number of terms."""
    program = column_sums(rows, 48)
    for optimizer in optimizers("x86-64-v4"):
        assert isinstance(optimizer, Roller | Gensor)
        for candidate in constructed(program, optimizer).programs:
            assert candidate.sketch.lane == 0
            assert candidate.sizes[L1][1] <= max_k_block
        check(program, "x86-64-v4", optimizer)


def test_non_affine_kernels_are_not_constructed() -> None:

    x, a, i = programs.buffer("x", (40,)), Var("a"), Var("i")
    halves = Computation(
        programs.buffer("t", (10,)), programs.axes("a", (10,)), programs.axes("i", (6,)), x[a // 2 + i], Reducer.SUM
    )
    for optimizer in optimizers("x86-64-v4"):
        assert optimizer.optimize(task_of(Program([halves]))) is None


def test_small_kernels_stay_serial() -> None:
    for optimizer in optimizers("x86-64-v4"):
        _, _, s = scheduled(Program([product(4, 16, 5)]), "x86-64-v4", optimizer)
        assert str(LoopKind.PARALLEL) not in show(s.func)


@pytest.mark.parametrize("reading", Reading)
def test_every_recorded_state_is_a_legal_program(reading: Reading) -> None:
    task = task_of(Program([image(1, 24, 40, 21, 3)], {}, frozenset({"w"})))
    problem = extract_problem(task.func, task.constants)
    assert problem is not None
    for space in search_spaces(problem, task, machine_named("zen5")):
        history = run_walks(space, Annealing(walks=4, reading=reading), 7)
        sizes = space.sizes(history.states.reshape(-1, len(problem.axes)))
        assert is_legal(problem, space.sketch, sizes).all()
        assert space.are_lowerable(sizes).all()
        assert (history.levels[0] == L2).all()
        assert (history.levels[-1] == REGISTER).all()
        assert np.allclose(history.probabilities.sum(axis=2), 1.0)
        assert len(history.recorded_sizes()) > 4


def test_trajectory_lists_the_steps_of_a_walk() -> None:
    walk = constructed(large(), Gensor(machine_named("zen5"), QUICK)).walk_batches[0].trajectory(0)
    assert len(walk.steps) == 100
    assert {m.level for m in walk.steps} == set(LEVELS)
    assert walk.steps[0].sizes[L1] == walk.steps[0].sizes[REGISTER][:2] + walk.steps[0].sizes[L1][2:]
    for m in walk.steps:
        assert m.action in [name for name, _ in m.probabilities]
    text = str(walk)
    assert "cache" in text
    assert "tile(v_" in text
    assert len(text.splitlines()) == 102


def test_local_search_ends_in_a_local_optimum() -> None:
    machine = machine_named("zen5")
    result = constructed(large(), Gensor(machine, QUICK))
    assert any(d.edges for d in result.searches)
    for d in result.searches:
        times = program_times(d.space.problem, d.sketch, d.space.sizes(d.states), machine).total
        assert (np.diff(times) < 0).all()
        targets, exists = neighbours(d.space, d.states[-1:])
        sizes = d.space.sizes(targets[exists])
        sizes = sizes[d.space.are_lowerable(sizes)]
        assert times[-1] <= program_times(d.space.problem, d.sketch, sizes, machine).total.min()
        assert len(d.trajectory_steps()) == len(d.edges) == len(d.states) - 1


def test_trajectory_to_the_best_program_is_a_walk_and_a_local_search() -> None:
    result = constructed(large(), Gensor(machine_named("zen5"), Annealing(walks=2)))
    walk, best = result.trajectory(), result.programs[0]
    assert walk is not None
    assert walk.final == best.sizes or best.sizes in [m.sizes for m in walk.steps]
    assert walk.steps[0].sizes in [h.trajectory(0, 1).steps[0].sizes for h in result.walk_batches]
    assert all(m.action in [name for name, _ in m.probabilities] for m in walk.steps)


def test_trajectory_to_the_best_program_may_be_growth_and_a_local_search() -> None:
    """Its K-block cannot be reached from the end of growth by single improving steps."""
    program = products_of_pictures(128, 512, 784, 128)
    result = constructed(program, Gensor(machine_named("x86-64-v4").with_cores(2), Annealing(walks=1)))
    walk, best, problem = result.trajectory(), result.programs[0], result.programs[0].problem
    assert walk is not None
    assert walk.final == best.sizes
    (path,) = [
        p
        for p in result.paths
        if (p.space.sketch.lane, p.space.sketch.packed) == (best.sketch.lane, best.sketch.packed)
    ]
    assert walk.steps[0].sizes == size_tuples(path.space.sizes(path.space.initial_state()[None])[0])
    grown = [m for m in walk.steps if not m.recorded]
    cuts = [m.action for m in grown[-K_BLOCK_SHRINK_STEPS:]]
    assert cuts == [f"inv_tile({problem.axes[problem.reduce[0]].name})"] * K_BLOCK_SHRINK_STEPS
    steps = path.steps[: len(grown) - K_BLOCK_SHRINK_STEPS]
    assert [m.sizes for m in walk.steps[1 : len(steps) + 1]] == [g.sizes for g in steps]
    states = [m.sizes for m in walk.steps] + [walk.final]
    assert len(set(states)) == len(states)
    names = [a.name for a in problem.axes]
    for m, before, after in zip(walk.steps, states, states[1:], strict=False):
        moved = [k for k in range(len(names)) if [x[k] for x in before] != [x[k] for x in after]]
        assert [names[k] in m.action for k in range(len(names))] == [k in moved for k in range(len(names))]
        assert len(moved) == 1


def test_local_searches_stay_lowerable_and_programs_are_ranked_once() -> None:
    program = products_of_pictures(128, 512, 784, 128)
    result = constructed(program, Gensor(machine_named("x86-64-v4").with_cores(2), Annealing(walks=1)))
    assert all(d.space.are_lowerable(d.space.sizes(d.states)).all() for d in result.searches)
    assert len(set(result.programs)) == len(result.programs) == MAX_LOWERING_TRIES


@pytest.mark.parametrize("seed", range(4))
def test_best_program_of_a_symbolic_shape_has_a_trajectory(seed: int) -> None:
    program = Program([product(M, 96, 80)], {M: 8}, frozenset({"w"}))
    result = constructed(program, Gensor(machine_named("x86-64-v4"), Annealing(walks=4), seed))
    walk = result.trajectory()
    assert walk is not None
    assert walk.final == result.programs[0].sizes or result.programs[0].sizes in [m.sizes for m in walk.steps]


def test_without_virtual_threads_no_action_sets_them() -> None:
    result = constructed(large(), Gensor(machine_named("zen5"), Annealing(walks=2, vthreads=False)))
    assert not any("vthread" in a.label(result.programs[0].problem) for h in result.walk_batches for a in h.actions)


def test_growth_path_prints_its_steps() -> None:
    result = constructed(large(), Roller(machine_named("zen5")))
    assert "tile(v_" in str(result.paths[0])
    assert result.trajectory() is None


def test_annealing_formulas() -> None:
    a = Annealing()
    assert a.iterations == 100
    assert record_probability(a.temperature(0)) > 0.999
    assert record_probability(a.temperature(99)) < 0.01
    assert cache_weight(0) == pytest.approx(0.5)
    assert cache_weight(10) == pytest.approx(1.5)
    assert cache_weight(20) == pytest.approx(2.5)


def test_roller_and_gensor_are_registered() -> None:
    assert [optimizer_named(n).name for n in ("roller", "gensor")] == ["roller", "gensor"]


@pytest.mark.parametrize(("bits", "copied", "turned"), [(8, 64, 16), (16, 32, 16), (32, 16, 16), (64, 8, 8)])
def test_elementwise_sketches_fill_vector_registers(bits: int, copied: int, turned: int) -> None:
    axes = (ProblemAxis("i", 64, True, False), ProblemAxis("j", 64, True, False))
    written = Operand("y", bits // 8, False, (64, 64), ((1, 0), (0, 1)), True)
    same = replace(written, buffer="x", written=False)
    across = replace(same, index=((0, 1), (1, 0)))
    for read, lanes in ((same, copied), (across, turned)):
        problem = Problem("y", "y", axes, (read, written), (), 1, bits)
        assert {f.lanes for f in elementwise_sketches(problem, Target.parse("x86-64-v4"))} == {lanes}
