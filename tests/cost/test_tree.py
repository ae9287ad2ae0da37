"""The cost model of tile trees: as for tile programs where a tree is one, and what must matter for chains does."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, reduce
from operator import add

import numpy as np
import pytest
from benchmarks.common.statistics import rank_correlation
from benchmarks.cost_model import largest_kernel_task
from benchmarks.populations import sample_uniformly
from benchmarks.tile_trees import unfused_products
from tests.fuzz_trees.draw import random_tree
from tests.fuzz_trees.kernels import random_kernel
from tests.optimize.chains import Chain
from tests.optimize.chains import task_of as chain_task
from tests.optimize.computations import normalised, product
from tests.optimize.programs import Program
from tests.optimize.tasks import MACHINES, task_of
from tests.optimize.test_chain_tree import chain_axes
from tests.optimize.test_rowwise_programs import random_program, rowwise_task
from tests.tile import trees
from tests.tile.spaces import Drawn, drawn
from tests.tile.trees import TreeCase, cases, func_of

import tilewright as tw
from tilewright.cost.analytical import program_time
from tilewright.cost.rowwise import rowwise_time
from tilewright.cost.trees.tree_model import TreeModel, tree_time, tree_times
from tilewright.errors import ScheduleError
from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Expr
from tilewright.loops.ir import Func, LoopKind
from tilewright.machine.model import Level, Machine
from tilewright.machine.shipped import machine_named
from tilewright.optimize.chains.chain_tree import ChainTiling, chain_tree
from tilewright.optimize.chains.expression import nested
from tilewright.optimize.construct.optimizer import problem_for
from tilewright.optimize.construct.program_tree import program_tree
from tilewright.optimize.task import Task
from tilewright.tile.check_tree import tree_problems
from tilewright.tile.lower import tile_program_tree
from tilewright.tile.program import SizeTuples, Sketch, TileProgram
from tilewright.tile.rowwise import RowwiseProgram
from tilewright.tile.tree import Compute, TileTree, nest
from tilewright.tile.tree_sizes import tree_sizes

MACHINE = machine_named("sapphire-rapids").with_cores(2)
ONE_CORE = MACHINE.with_cores(1)
CASES = cases()


def model_of(tree: TileTree, func: Func, machine: Machine = ONE_CORE) -> TreeModel:
    """The model of a tree that has one."""
    model = TreeModel.of(tree, func, machine)
    assert model is not None
    return model


def time_of(tree: TileTree, func: Func, machine: Machine = ONE_CORE) -> float:
    """Nanoseconds of a tree at its kernel's representative shape."""
    return float(model_of(tree, func, machine).times(np.array([tree_sizes(tree)]))[0])


def times_of(d: Drawn, machine: Machine) -> tuple[float, float]:
    """Nanoseconds of a program, as a tile program and as a tree."""
    tree = tile_program_tree(d.tiled, d.task.func, True, machine.cores)
    model = TreeModel.of(tree, d.task.func, machine, d.task.constants)
    assert model is not None
    return program_time(d.tiled, machine), float(model.times(np.array([tree_sizes(tree)]))[0])


@cache
def contraction_programs() -> list[Drawn]:
    """Random programs of contractions; drawn by the first test, as every process of a run collects all tests."""
    return [d for seed in range(60) for t in MACHINES for d in drawn(seed, t) if d.tiled.problem.reduce]


def machine_of(d: Drawn, cores: int) -> Machine:
    """The machine of a program's target."""
    return machine_named(MACHINES[str(d.task.target)]).with_cores(cores)


def test_trees_of_programs_of_known_size_take_the_same_time() -> None:
    static = [d for d in contraction_programs() if "symbols" not in d.features()]
    assert len(static) > 100
    assert {name for d in static for name in d.features()} == {"rows", "lanes", "chunks"}
    for d in static:
        program, tree = times_of(d, machine_of(d, 1))
        assert tree == pytest.approx(program, rel=0.07), d.tiled


def test_trees_of_all_programs_are_ranked_alike() -> None:
    program, tree = zip(*(times_of(d, machine_of(d, 2)) for d in contraction_programs()), strict=True)
    assert rank_correlation(list(program), list(tree)) >= 0.99
    close = [abs(b / a - 1.0) <= 0.05 for a, b in zip(program, tree, strict=True)]
    # the others: single rows of a symbolic remainder, and remainders in the tasks of the whole tiles
    assert sum(close) >= 0.9 * len(close)


@pytest.mark.parametrize("name", ["gemm_m37_k768_n2304", "conv_1x64x56x56_o64_k3_s1", "gemm_m1_k2048_n1000"])
def test_trees_of_operators_take_the_same_time(name: str) -> None:
    task = largest_kernel_task(name)
    programs = [p for _, p in sample_uniformly(task, 6) if isinstance(p, TileProgram)]
    assert programs
    for p in programs:
        tree = tile_program_tree(p, task.func, True, 1)
        assert tree_time(tree, task.func, ONE_CORE, task.constants) == pytest.approx(
            program_time(p, ONE_CORE), rel=0.05
        )


@pytest.mark.parametrize(
    ("computation", "sketch", "ahead", "sizes", "error", "gain"),
    [
        (product(40, 2048, 1024), Sketch(1, 16, (1, 0), 2), 1, ((8, 32, 1), (40, 32, 64), (40, 32, 1024)), 0.05, 0.9),
        (product(16000, 1, 1000), Sketch(1, 16, (0,), None), 0, ((4, 16), (4, 1008), (4, 1008)), 1e-6, 0.99),
    ],
    ids=["distant_rows", "lane_reduction"],
)
def test_trees_know_of_rows_that_are_prefetched(
    computation: Computation, sketch: Sketch, ahead: int, sizes: SizeTuples, error: float, gain: float
) -> None:
    task = task_of(Program([computation], {}))
    problem = problem_for(task)
    assert problem is not None
    times: list[float] = []
    for prefetched in ((), (ahead,)):
        p = TileProgram(problem, replace(sketch, prefetched_operands=prefetched), sizes)
        times.append(program_time(p, ONE_CORE))
        tree = tile_program_tree(p, task.func, True, 1)
        assert tree_time(tree, task.func, ONE_CORE) == pytest.approx(times[-1], rel=error)
    assert times[1] < gain * times[0]


def rowwise_trees(program: Program, count: int) -> list[tuple[RowwiseProgram, TileTree, Task]]:
    """Random row-wise programs of a kernel, with their trees."""
    task, problem = rowwise_task(program)
    programs = [random_program(problem, "x86-64-v4", np.random.default_rng(seed)) for seed in range(count)]
    return [(p, program_tree(p, task, True), task) for p in programs]


ROWWISE = {
    "softmax": Program(normalised(512, 1024), {}),
    "short rows": Program(normalised(1000, 80), {}),
    "partial vectors": Program(normalised(37, 50), {}),
}


@pytest.mark.parametrize("name", ROWWISE)
@pytest.mark.parametrize("cores", [1, 2])
def test_trees_of_rowwise_programs_take_the_same_time(name: str, cores: int) -> None:
    machine = MACHINE.with_cores(cores)
    for p, tree, task in rowwise_trees(ROWWISE[name], 6):
        assert model_of(tree, task.func, machine).rowwise is not None
        assert time_of(tree, task.func, machine) == pytest.approx(float(rowwise_time(p, machine).total[0]), rel=0.01)
        breakdown = model_of(tree, task.func, machine).breakdown(np.array([tree_sizes(tree)]))
        assert [x.name for x in breakdown.parts] == [x.problem.block for x in p.stages]
        assert breakdown.total[0] == pytest.approx(time_of(tree, task.func, machine))


def test_chains_are_not_rowwise() -> None:
    for case in CASES.values():
        assert model_of(case.tree, case.func).rowwise is None


@pytest.mark.parametrize("name", CASES)
def test_batches_are_scored_as_single_trees(name: str) -> None:
    case, rng = CASES[name], np.random.default_rng(0)
    own = np.array(tree_sizes(case.tree))
    sizes = np.stack([own, *(np.maximum(1, own // rng.choice([1, 2], len(own))) for _ in range(6))])
    model = model_of(case.tree, case.func, MACHINE)
    together = model.times(np.repeat(sizes, 700, axis=0))
    single = [model.times(row[None])[0] for row in sizes]
    np.testing.assert_allclose(together.reshape(7, 700), np.repeat(single, 700).reshape(7, 700), rtol=1e-12)


def test_candidates_have_as_many_sizes_as_the_tree() -> None:
    case = CASES["two products"]
    model, count = model_of(case.tree, case.func), len(tree_sizes(case.tree))
    assert model.times(np.zeros((0, count), np.int64)).shape == (0,)
    with pytest.raises(ScheduleError, match=rf"expected candidates of {count} sizes, got \(3, 2\)"):
        model.times(np.ones((3, 2), np.int64))


@pytest.mark.parametrize("name", CASES)
def test_terms_add_up(name: str) -> None:
    case = CASES[name]
    model, sizes = model_of(case.tree, case.func, MACHINE), np.array([tree_sizes(case.tree)] * 2)
    breakdown = model.breakdown(sizes)
    np.testing.assert_allclose(breakdown.total, model.times(sizes))
    np.testing.assert_allclose(reduce(add, [x.total for x in breakdown.parts]) + breakdown.packing, breakdown.total)
    for part in breakdown.parts:
        np.testing.assert_allclose(part.compute, reduce(add, [x.compute for x in part.phases]))
        for k, level in enumerate(part.levels):
            measured = reduce(add, [x.memory[k] for x in part.phases])
            np.testing.assert_allclose(reduce(add, level.time.values()), measured, atol=1e-6)
        assert all(np.isfinite(x).all() for x in part.features().values())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_machines_have_any_number_of_caches(name: str, count: int) -> None:
    case = CASES[name]
    model = model_of(case.tree, case.func, machine_of_caches(count))
    breakdown = model.breakdown(np.array([tree_sizes(case.tree)]))
    assert all(len(part.levels) == count for part in breakdown.parts)
    assert breakdown.total[0] > 0


def machine_of_caches(count: int) -> Machine:
    """A machine with so many caches."""
    *inner, memory = MACHINE.levels
    last = inner[-1]
    l4 = Level(
        "L4", 4 * last.bytes, last.line, last.ways, 2 * last.latency_ns, last.core_gbs / 2, last.total_gbs / 2, 1
    )
    return replace(MACHINE, levels=(*[*inner, l4][:count], memory))


def part_named(case: TreeCase, name: str, machine: Machine = ONE_CORE) -> dict[str, float]:
    """The terms of a statement."""
    breakdown = model_of(case.tree, case.func, machine).breakdown(np.array([tree_sizes(case.tree)]))
    (part,) = [x for x in breakdown.parts if x.name == name]
    return {k: float(np.ravel(x)[0]) for k, x in part.features().items()}


def test_halos_are_computed_again() -> None:
    result = trees.inverted_residual(20, 8, 32, 24)
    func = func_of(result)
    # tiles of 5 x 10 need 7 x 12 points of the first convolution
    small, large = (TreeCase(result, trees.tree_of_inverted_residual(func, r, c), {}) for r, c in ((5, 10), (20, 20)))
    tiles = [part_named(case, "E")["count.register_tiles"] * n for case, n in ((small, 8), (large, 1))]
    assert tiles == [8 * 7 * 12 / 4 * 2, 22 * 24 / 4 * 2]


def memory_bytes(tree: TileTree, func: Func) -> float:
    """Bytes that leave memory."""
    breakdown = model_of(tree, func).breakdown(np.array([tree_sizes(tree)]))
    return sum(float(x.levels[-1].bytes["traffic"][0]) for x in breakdown.parts)


def test_a_fused_intermediate_does_not_leave_the_caches() -> None:
    # 256 MiB of intermediate, and weights that the share of a core in the last cache does not hold
    func = func_of(trees.two_products(8192, 8192, 16, 32))
    fused, apart = trees.tree_of_two_products(func, 64, 128, 8, 16), unfused_products(func, 8, 32)
    assert memory_bytes(apart, func) > 3 * 4 * 8192 * 8192
    assert memory_bytes(fused, func) < 4 * 8192 * 8192
    assert memory_bytes(fused, func) == pytest.approx(8192 / 64 * 4 * 8192 * (16 + 32), rel=0.2)
    assert time_of(fused, func) < time_of(apart, func)


def test_intermediates_on_the_stack_count_once_per_place() -> None:
    func = func_of(trees.two_products(1024, 2048, 64, 64))
    few, many = (trees.tree_of_two_products(func, 32, chunk, 8, 32) for chunk in (64, 2048))
    model = model_of(few, func)
    chunks = [x.footprints for x in model.nest_batches(np.array([tree_sizes(few)]))]
    # 32 rows of 64 columns, at every depth from that of the chunk outwards
    stored = [f.operand_bytes[-1, :, 0] for f in chunks[:1]]
    assert stored[0][0] == 4 * 32 * 64
    # rows of the whole intermediate do not fit L1 and move again and again
    l1_traffic = [
        float(model_of(t, func).breakdown(np.array([tree_sizes(t)])).parts[0].levels[0].bytes["traffic"][0])
        for t in (few, many)
    ]
    assert l1_traffic[0] < l1_traffic[1]


def test_outer_partial_sums_cost_the_more_the_shorter_their_blocks() -> None:
    func = func_of(trees.product(768, 768, 768))
    few, many = (trees.tree_of_three_caches(func, 384, 192, 48, blocks) for blocks in ((384, 32), (64, 32)))
    assert time_of(few, func) < time_of(many, func)


def test_a_parallel_loop_is_shared_by_all_statements_in_it() -> None:
    func = func_of(trees.two_products(4096, 1024, 64, 64))
    tree = trees.tree_of_two_products(func)
    assert time_of(tree, func, MACHINE) == pytest.approx(time_of(tree, func, ONE_CORE) / 2, rel=0.15)
    serial = TileTree((replace(tree.body[0], kind=LoopKind.SERIAL),), tree.staging)  # pyright: ignore[reportArgumentType]
    assert time_of(serial, func, MACHINE) == pytest.approx(time_of(tree, func, ONE_CORE), rel=0.02)


@pytest.mark.parametrize("part", range(4))
def test_random_trees_of_several_computations_have_times(part: int) -> None:
    for seed in range(40 * part, 40 * (part + 1)):
        rng = np.random.default_rng(seed)
        func = func_of(random_kernel(rng))
        tree = random_tree(func, rng)
        if tree_problems(tree, func):
            continue
        model, sizes = model_of(tree, func, MACHINE), np.array([tree_sizes(tree)])
        (time,) = model.times(sizes)
        assert 0 < time < 1e9
        assert model.breakdown(sizes).total[0] == pytest.approx(time)


def test_time_over_sampled_shapes() -> None:
    case = CASES["attention"]
    time = tree_time(case.tree, case.func, ONE_CORE)
    assert time is not None
    assert 0 < time < 1e9


def test_accesses_that_are_not_affine_have_no_model() -> None:
    table = tw.placeholder((8, 32), name="T")

    def halved(i: Expr, j: Expr) -> Expr:
        return table[i // 2, j]

    result = tw.compute((16, 32), halved, "G")
    func = func_of(result)
    axes: Sequence[str] = trees.axes_of(func, "G")
    tree = TileTree(nest(trees.loops(*((a, 1) for a in axes)), Compute("G")))
    assert TreeModel.of(tree, func, ONE_CORE) is None
    assert tree_time(tree, func, ONE_CORE) is None


def test_statements_without_a_place_have_no_model() -> None:
    func = func_of(trees.two_products(70, 96, 24, 40))
    tree = trees.tree_of_two_products(func)
    assert TreeModel.of(TileTree((), tree.staging), func, ONE_CORE) is None


@pytest.mark.parametrize("name", ["zen4", "zen5", "sapphire-rapids"])
@pytest.mark.parametrize("columns", [3, 5, 8])
def test_chains_of_few_columns_count_the_vectors_that_their_loops_have(name: str, columns: int) -> None:
    """Tiles of 16 lanes around 3, 5 and 8 columns are one vector, as around 16 columns."""
    machine, times = machine_named(name), dict[int, float]()
    for n in (columns, 16):
        chain = Chain((8,), 64, (32, 64, n))
        func = tw.create_schedule(chain.tensor()).func
        row, *_ = chain_axes(func, chain)
        tree = chain_tree(chain_task(func, "x86-64-v4"), ChainTiling(nested((row,)), ((row, 16),)), machine)
        times[n] = float(tree_times([tree], func, machine, frozenset())[0])
    assert times[columns] <= 1.02 * times[16]
