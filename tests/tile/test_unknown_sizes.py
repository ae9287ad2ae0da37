"""Sizes that are symbols: where programs are compared, which tiles rows are left to, and what that costs."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.optimize.computations import product
from tests.optimize.programs import Program, data_for, shape_of
from tests.optimize.tasks import task_of

from tilewright.cost.analytical import mean_time, program_times
from tilewright.cost.candidate_batch import remainder_tiles
from tilewright.cost.shape_family import ShapeFamily
from tilewright.expr.define import MAX_SIZE
from tilewright.expr.nodes import Symbol, Var
from tilewright.expr.traversal import conjuncts, free_vars
from tilewright.loops.interpreter import interpret
from tilewright.loops.ir import Block, For, Func, IterKind, LoopKind, blocks, walk
from tilewright.loops.parser import parse
from tilewright.lower.lower_kernel import lower_kernel
from tilewright.machine.shipped import machine_named
from tilewright.tile.lower import lower_program
from tilewright.tile.problem import Problem, extract_problem
from tilewright.tile.program import Sketch, TileProgram, is_legal, remainder_tile_heights
from tilewright.tile.shape_samples import MAX_SAMPLE_VOLUME, representative_size, sample_shapes
from tilewright.verify.verifier import verify

R = Symbol("R", 1, 64)
C = Symbol("C", 1, 64)
B = Symbol("B", 1, 9)
FEW = Symbol("B", 1, 3)
SKETCH = Sketch(1, 16, (1, 0), 2, ((1, 1),))
MACHINE = machine_named("zen5").with_cores(2)


def problem(rows: Var | int = R, columns: Var | int = 64) -> tuple[Problem, Program]:
    """A product of some rows with constant weights."""
    sizes = {v: 7 for v in (rows, columns) if isinstance(v, Var)}
    program = Program([product(rows, columns, 48)], sizes, frozenset({"w"}))
    task = task_of(program)
    kernel_problem = extract_problem(task.func, task.constants)
    assert kernel_problem is not None
    return kernel_problem, program


def test_samples_cover_the_ranges_and_differ() -> None:
    h, w = Symbol("h", 8, 128), Symbol("w", 8, 128)
    expected = [(1, 9, 9), (6, 28, 28), (48, 96, 96), (1, 96, 96), (48, 28, 28)]
    assert [tuple(s.values()) for s in sample_shapes((R, h, w))] == expected
    for symbol, each in (
        (Symbol("n", 5, 5), [5]),
        (Symbol("n", 0, None), [1, 12, 192]),
        (Symbol("n", 1, 3), [1, 2, 3]),
        (Symbol("n", 1, MAX_SIZE), [1, 12, 192]),
        (Symbol("n", 1000, 1 << 62), [1000]),
        (Symbol("n", 1, MAX_SIZE // 16 + 1), [1, 12, 192]),
        (Symbol("n", 65, 70), [65, 67]),
    ):
        assert [s[symbol] for s in sample_shapes((symbol,))] == each
    assert sample_shapes(()) == ({},)


def test_sample_volumes_vary() -> None:
    volumes = [prod(s.values()) for s in sample_shapes(tuple(Symbol(n, 1, 64) for n in "bhw"))]
    assert volumes == [1, 216, 110592, 2304, 1728]
    assert min(volumes) < prod(representative_size(Symbol(n, 1, 64)) for n in "bhw") < max(volumes)


@pytest.mark.parametrize("high", [64, 4096, MAX_SIZE])
def test_sample_volumes_are_limited(high: int) -> None:
    for s in sample_shapes(tuple(Symbol(n, 1, high) for n in "bchwst")):
        assert 1 <= prod(s.values()) <= MAX_SAMPLE_VOLUME
    (least,) = sample_shapes(tuple(Symbol(n, 1 << 12, 1 << 20) for n in "bhw"))
    assert set(least.values()) == {1 << 12}


def test_symbolic_problems_have_samples() -> None:
    kernel_problem, _ = problem()
    assert [p.axes[0].extent for p in kernel_problem.samples] == [1, 6, 48]
    assert [p.operands[0].shape for p in kernel_problem.samples] == [(1, 48), (6, 48), (48, 48)]
    assert problem(28)[0].samples == ()


def test_mean_time_is_the_geometric_mean_over_samples() -> None:
    sizes = np.array([[[8, 32, 1], [8, 32, 48], [8, 64, 48]], [[2, 32, 1], [2, 32, 48], [2, 32, 48]]])
    kernel_problem, _ = problem()
    each = np.array([program_times(p, SKETCH, sizes, MACHINE).total for p in kernel_problem.samples])
    assert np.isfinite(each).all()
    assert (each > 0).all()
    np.testing.assert_allclose(
        mean_time(kernel_problem, SKETCH, sizes, MACHINE),
        np.exp(np.log(each + MACHINE.cost.call_ns).mean(axis=0)) - MACHINE.cost.call_ns,
    )
    static, _ = problem(28)
    np.testing.assert_array_equal(
        mean_time(static, SKETCH, sizes, MACHINE), program_times(static, SKETCH, sizes, MACHINE).total
    )


@given(st.integers(1, 14), st.integers(1, 200))
def test_symbolic_remainders_have_few_tiles(rows: int, extent: int) -> None:
    kernel_problem, _ = problem()
    at = replace(kernel_problem, axes=(replace(kernel_problem.axes[0], extent=extent), *kernel_problem.axes[1:]))
    sizes = np.array([[[rows, 32, 1]] * 3])
    left, tiles = extent % rows, 0
    for height in remainder_tile_heights(rows):
        left, tiles = left % height, tiles + left // height
    assert left == 0
    assert tiles <= 2 * rows**0.5
    heights, counts = remainder_tiles(ShapeFamily.of(at), SKETCH, sizes)
    assert counts[0].tolist() == [tiles, 0, 0]
    assert heights[0].tolist() == [remainder_tile_heights(rows)[0] if tiles else 0, 0, 0]


def test_static_remainders_are_one_tile() -> None:
    kernel_problem, _ = problem(28)
    heights, counts = remainder_tiles(ShapeFamily.of(kernel_problem), SKETCH, np.array([[[8, 32, 1]] * 3]))
    assert (heights.tolist(), counts.tolist()) == ([[4, 0, 0]], [[1, 0, 0]])


@pytest.mark.parametrize("rows", [1, 2, 3, 6, 8])
def test_symbolic_row_counts_compute_the_same(rows: int) -> None:
    kernel_problem, program = problem()
    task = task_of(program)
    lowered = lower_program(
        TileProgram(kernel_problem, SKETCH, ((rows, 32, 1), (rows, 64, 48), (rows, 64, 48))), task.func
    )
    verify(lowered.func)
    sums = [b for b in blocks(lowered.func.body) if any(i.kind is IterKind.REDUCE for i in b.iters)]
    assert len(sums) == (1 + len(remainder_tile_heights(rows)) if rows > 1 else 1)
    check_all_sizes(task.func, lowered.func, rows)


@pytest.mark.parametrize(("tiles", "columns", "order"), [
    (((3, 32, 1), (6, 32, 48), (12, 64, 48)), 128, (1, 0)), (((3, 32, 1), (12, 64, 16), (12, 64, 48)), C, (0, 1)),
    (((1, 32, 1), (6, 32, 16), (24, 32, 48)), 64, (1, 0)), (((8, 32, 1), (8, 32, 16), (32, 32, 48)), 64, (0, 1)),
])  # fmt: skip
def test_symbolic_axes_have_tiles_at_all_levels(
    tiles: tuple[tuple[int, ...], ...], columns: Var | int, order: tuple[int, int]
) -> None:
    """The last L1 and L2 tile have as many register tiles as are left, without a test inside of register tiles."""
    kernel_problem, program = problem(R, columns)
    sketch = replace(SKETCH, order=order, packed=() if columns is C else SKETCH.packed)
    task = task_of(program)
    lowered = lower_program(TileProgram(kernel_problem, sketch, tiles), task.func)
    verify(lowered.func)
    check_all_sizes(task.func, lowered.func, tiles[0][0])
    loops = lower_kernel(lowered.func, task.target).func
    verify(loops)
    check_all_sizes(task.func, loops, tiles[0][0])
    sums = [b for b in blocks(loops.body) if any(i.kind is IterKind.REDUCE for i in b.iters)]
    row_tests = [c for b in sums for c in conjuncts(b.predicate) if R in free_vars(c) and C not in free_vars(c)]
    assert not row_tests


def test_a_tile_beyond_the_axis_costs_what_one_of_its_size_does() -> None:
    kernel_problem, _ = problem(Symbol("R", 8, 8), 64)
    larger = np.array([[[4, 32, 1], [4, 32, 48], [64, 32, 48]], [[4, 32, 1], [4, 32, 48], [8, 32, 48]]])
    assert is_legal(kernel_problem, SKETCH, larger).all()
    beyond, whole = mean_time(kernel_problem, SKETCH, larger, MACHINE)
    assert beyond == whole
    static, _ = problem(8, 64)
    assert is_legal(static, SKETCH, larger).tolist() == [False, True]


def lanes_of_sums(func: Func) -> list[int]:
    """Of the register tiles of all nests, in their order."""
    lanes: list[int] = []
    for s, loops in walk(func.body):
        if isinstance(s, Block) and any(i.kind is IterKind.REDUCE for i in s.iters):
            lanes += [int(str(x.extent)) for x in loops if x.kind is LoopKind.VECTORIZED]
    return lanes


@pytest.mark.parametrize(("columns", "order", "packed", "far", "lanes"), [
    (C, (0, 1), False, 16, [16, 32, 64]), (64, (0, 1), False, 16, [16, 32, 64]), (40, (0, 1), False, 16, [16, 32, 16]),
    (64, (0, 1), True, 16, [16, 16, 16]), (64, (1, 0), False, 16, [16, 16, 16]), (96, (0, 1), False, 48, [16, 16, 16]),
    (64, (0, 1), False, 64, [16, 32, 64]),
])  # fmt: skip
def test_remainder_tiles_are_widened(
    columns: Var | int, order: tuple[int, int], packed: bool, far: int, lanes: list[int]
) -> None:
    """As many sums are under way, unless lanes are packed, are fewer, belong to what all rows share, or fill no tile
    of the levels above."""
    kernel_problem, program = problem(R, columns)
    sketch = replace(SKETCH, order=order, packed=SKETCH.packed if packed else ())
    task = task_of(program)
    lowered = lower_program(TileProgram(kernel_problem, sketch, ((6, 16, 1), (6, far, 48), (6, far, 48))), task.func)
    verify(lowered.func)
    assert lanes_of_sums(lowered.func) == lanes
    check_all_sizes(task.func, lowered.func, 6)


def check_all_sizes(origin: Func, lowered: Func, seed: int, images: Var = B) -> None:
    """Both compute the same for any number of rows."""
    rng = np.random.default_rng(seed)
    for n in (1, 2, 7, 8, 14, 23, 64):
        sizes = {R: n, C: 3 * n, images: 1 + n % 3}
        feeds = {p.name: data_for(p, sizes, rng) for p in origin.inputs}
        results: list[np.ndarray] = []
        for f in (origin, lowered):
            out = f.outputs[-1]
            result = np.full(shape_of(out, sizes), 99, out.dtype.numpy)
            interpret(f, {**feeds, out.name: result}, sizes, seed=3)
            results.append(result)
        np.testing.assert_array_equal(results[1], results[0])


@pytest.mark.parametrize(("cores", "order", "nests"), [(1, (1, 0), 1), (2, (1, 0), 3), (1, (0, 1), 3)])
def test_symbolic_rows_share_l2_loops_with_enough_tasks(cores: int, order: tuple[int, int], nests: int) -> None:
    kernel_problem, program = problem(columns=128)
    task = task_of(program)
    tiles = ((6, 32, 1), (6, 32, 48), (6, 32, 48))
    lowered = lower_program(TileProgram(kernel_problem, replace(SKETCH, order=order), tiles), task.func, cores=cores)
    verify(lowered.func)
    parallel = [x for x, loops in walk(lowered.func.body) if isinstance(x, For) and x.kind is LoopKind.PARALLEL
                and not any(y.kind is LoopKind.PARALLEL for y in loops)]  # fmt: skip
    assert len(parallel) == nests
    if nests == 1:
        assert str(parallel[0].extent) == "4"
    check_all_sizes(task.func, lowered.func, cores)


@pytest.mark.parametrize("images", [B, FEW])
@pytest.mark.parametrize(("order", "shared"), [((0, 1, 2), ["B", "12"]), ((1, 0, 2), ["12", "B"]), ((2, 0, 1), [])])
def test_symbolic_rows_share_untiled_symbolic_loops(
    order: tuple[int, int, int], shared: list[str], images: Var
) -> None:
    """Of a depthwise convolution of B images, whose rows in each are unknown: tiles of rows and those that are left
    are in the same tasks, over images and channels in the order of the program."""
    func = parse(f"""
func depthwise(
        x: float32[B, 12, R + 2, 18], w: float32[12, 3, 3], y: float32[B, 12, R, 16]; B: 1..{images.hi}, R: 1..64):
    for b in serial(B):
        for c in serial(12):
            for h in serial(R):
                for l in serial(16):
                    for r in serial(3):
                        for s in serial(3):
                            block y(vb: B = b, vc: 12 = c, vh: R = h, vl: 16 = l, reduce vr: 3 = r, reduce vs: 3 = s):
                                init y[vb, vc, vh, vl] = 0.0
                                y[vb, vc, vh, vl] = y[vb, vc, vh, vl] + x[vb, vc, vh + vr, vl + vs] * w[vc, vr, vs]
""")
    problem = extract_problem(func, frozenset({"w"}))
    assert problem is not None
    sketch = Sketch(3, 8, (*order, 3), None)
    tiles = tuple((1, 1, 4, 8, *rest) for rest in ((1, 1), (3, 3), (3, 3)))
    lowered = lower_program(TileProgram(problem, sketch, tiles), func)
    verify(lowered.func)
    nests = [x for x, loops in walk(lowered.func.body) if isinstance(x, For) and x.kind is LoopKind.PARALLEL
             and not any(y.kind is LoopKind.PARALLEL for y in loops)]  # fmt: skip
    assert len(nests) == (1 if shared else 3)
    if shared:
        inside = [nests[0], nests[0].body]
        assert [str(x.extent) for x in inside if isinstance(x, For) and x.kind is LoopKind.PARALLEL] == shared
    check_all_sizes(func, lowered.func, 5, images)


def test_at_most_one_symbolic_axis_has_several_rows() -> None:
    kernel_problem, _ = problem(R, C)
    sketch = Sketch(2, 16, (1, 0), None)
    both = np.array([[[2, 2, 16], [2, 2, 48], [2, 2, 48]]])
    one = np.array([[[2, 1, 16], [2, 1, 48], [2, 1, 48]]])
    assert not is_legal(kernel_problem, sketch, both).any()
    assert is_legal(kernel_problem, sketch, one).all()
