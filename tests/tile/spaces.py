"""Random programs of the spaces of random sums: rows, lanes and chunks that leave some over, alone and together.

Sizes are drawn so that tiles often do not divide them. Every program of a space is as likely as any other, not only
those that a cost model likes; chunks may have any length that makes a program.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from benchmarks.populations import reachable_tile_sizes
from tests.optimize.programs import Program, buffer
from tests.optimize.tasks import MACHINES, task_of

from tilewright.expr.computation import Axis, Computation, Reducer
from tilewright.expr.dtype import float32, float64, int32
from tilewright.expr.nodes import Expr, Symbol, Var, as_expr, const
from tilewright.expr.operations import maximum
from tilewright.machine.shipped import machine_named
from tilewright.optimize.construct.optimizer import problem_for, search_spaces
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.task import Task
from tilewright.tile.program import L1, REGISTER, Sketch, TileProgram, is_legal, remainders

ROWS = (1, 2, 3, 5, 7, 11, 13, 17, 23, 24, 29, 31, 37)
COLUMNS = (1, 3, 5, 8, 9, 15, 16, 17, 23, 24, 31, 33, 40, 48, 50)
TERMS = (7, 16, 17, 19, 23, 29, 31, 32, 36, 37, 41, 45, 47, 53, 55, 61, 64, 67, 74)

A, B, C, K, L = (Var(name) for name in "abcij")
M, N = Symbol("M", 1, 40), Symbol("N", 1, 4)

KINDS = ("product", "product", "product", "batched", "batched", "rows", "columns", "vector", "windows")


@dataclass(frozen=True)
class Drawn:
    """A program of a kernel's space.

    Attributes:
        kernel: the stages.
        task: of the kernel.
        tiled: a program for it.
        parallel, cores: arguments of `lower`.
    """

    kernel: Program
    task: Task
    tiled: TileProgram
    parallel: bool
    cores: int

    def features(self) -> frozenset[str]:
        """What does not divide: `rows`, `lanes`, `chunks`; and `symbols`."""
        problem, sketch, sizes = self.tiled.problem, self.tiled.sketch, self.tiled.array
        cut, lane = sketch.k_block_axis, problem.axes[sketch.lane]
        is_present = {
            "rows": remainders(problem, sketch, sizes[None]).any(),
            "lanes": not lane.is_static or lane.extent % sizes[REGISTER, sketch.lane],
            "chunks": cut is not None and problem.axes[cut].extent % sizes[L1, cut],
            "symbols": not all(a.is_static for a in problem.axes),
        }
        return frozenset(name for name, present in is_present.items() if present)


def drawn(seed: int, target: str, each: int = 1) -> list[Drawn]:
    """Programs of one random kernel: some of every space that it has, each in one order of loops."""
    rng = np.random.default_rng([seed])
    kernel = random_kernel(rng)
    task = task_of(kernel, target)
    problem = problem_for(task)
    if problem is None:
        return []
    programs: list[Drawn] = []
    for space, forms in search_spaces(replace(problem, samples=()), task, machine_named(MACHINES[target])).items():
        sketch = forms[rng.integers(len(forms))]
        for tiled in _some(space, sketch, rng, each):
            programs.append(Drawn(kernel, task, tiled, bool(rng.integers(2)), int(rng.choice([1, 2, 8]))))
    return programs


def _some(space: SearchSpace, sketch: Sketch, rng: np.random.Generator, count: int) -> Iterator[TileProgram]:
    chains = [
        reachable_tile_sizes(ladder, int(start))
        for ladder, start in zip(space.lattices, space.initial_state(), strict=True)
    ]
    sizes = space.sizes(np.stack([rng.choice(c, 16 * count) for c in chains], axis=1)).copy()
    cut = sketch.k_block_axis
    if cut is not None:
        for row in sizes:
            step = int(row[REGISTER, cut])
            row[L1, cut] = step * rng.integers(1, space.problem.axes[cut].extent // step + 1)
    for k in np.flatnonzero(space.are_lowerable(sizes) & is_legal(space.problem, sketch, sizes))[:count]:
        yield TileProgram.of(space.problem, sketch, sizes[k])


Dims = list[tuple[Var, Expr]]


def random_kernel(rng: np.random.Generator) -> Program:
    """A sum of products or of elements, maybe with an epilogue, operands and results in any order of axes."""
    kind = str(rng.choice(KINDS))
    few = kind in ("batched", "windows")
    m, n, k = (int(rng.choice([x for x in some if not few or x < 48])) for some in (ROWS, COLUMNS, TERMS))
    row = (A, M if rng.random() < 0.4 else const(m))
    column, term, tap = (B, as_expr(n)), (K, as_expr(k)), (L, as_expr(int(rng.choice([2, 3]))))
    batch = (C, N if rng.random() < 0.2 else as_expr(int(rng.choice([1, 2, 3]))))
    left, right, out, over = {
        "product": ([row, term], [term, column], [row, column], [term]),
        "batched": ([batch, row, term], [batch, term, column][rng.integers(2) :], [batch, row, column], [term]),
        "rows": ([row, column, term], [], [row, column], [term]),
        "columns": ([term, column], [], [column], [term]),
        "vector": ([row, term], [term], [row], [term]),
        "windows": ([row, term, tap], [term, tap, column], [row, column], [term, tap]),
    }[kind]
    left, right, out = (_turned(dims, rng) for dims in (left, right, out))
    dtype = (float32, float32, float32, float32, float64, int32)[rng.integers(6)]
    body = buffer("x", [n for _, n in left], dtype)[tuple(v for v, _ in left)]
    if right:
        body = body * buffer("w", [n for _, n in right], dtype)[tuple(v for v, _ in right)]
    reducer = Reducer.MAX if not right and rng.random() < 0.3 else Reducer.SUM
    shape = [n for _, n in out]
    axes, steps = (tuple(Axis(v, n) for v, n in dims) for dims in (out, over))
    stages = [Computation(buffer("t", shape, dtype), axes, steps, body, reducer)]
    if rng.random() < 0.5:
        stages.append(_epilogue(stages[0], rng))
    sizes = {v: s for v, s in ((M, m), (N, int(rng.choice([1, 2, 3])))) if any(v is n for _, n in (*left, *right))}
    return Program(stages, sizes, frozenset({"w"} if rng.random() < 0.5 else ()))


def _turned(dims: Dims, rng: np.random.Generator) -> Dims:
    return [dims[k] for k in rng.permutation(len(dims))] if rng.random() < 0.35 else dims


def _epilogue(first: Computation, rng: np.random.Generator) -> Computation:
    shape, dtype = first.output.shape, first.output.dtype
    fresh = tuple(Axis(Var(f"e{k}"), n) for k, n in enumerate(shape))
    index = tuple(a.var for a in fresh)
    k = int(rng.integers(len(shape)))
    value = first.output[index] + buffer("bias", [shape[k]], dtype)[(index[k],)]
    if rng.random() < 0.4:
        value = value + buffer("residual", shape, dtype)[index]
    return Computation(buffer("y", shape, dtype), fresh, (), maximum(value, const(0, dtype)))
