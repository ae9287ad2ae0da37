"""Hierarchical search: an operator's programs in the ranges that another operator's tuned program gives (Algorithm 1).

For every number of parallel tasks B in its range the cheapest grid; with it, for numbers of micro-tiles T in theirs the
cheapest register tile, with K-blocks that take about as much memory as the reused program's. The fastest one is varied
further: K-blocks whose memory is in the range of M, then unroll factors, then shorter vectors. B with the best
predicted times come first, and one whose programs are all far slower than the best so far is not varied. Half of the B
may be those of other sketches, with other lanes or packed operands.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.errors import ScheduleError, VerifyError
from tilewright.optimize.construct.lower_programs import lower_for_machine
from tilewright.optimize.measurer import Candidate, Measurement
from tilewright.optimize.reuse.program_features import features_of
from tilewright.optimize.reuse.recognize import MIN_LANES
from tilewright.optimize.reuse.reusable_task import ReusableTask
from tilewright.optimize.reuse.reuse_ranges import FeatureRange, ReuseRanges
from tilewright.optimize.reuse.search_cost import MAX_BLOCKS, MAX_COUNTS, PROCESSOR_SEARCH, SearchFeature, SearchSize
from tilewright.optimize.reuse.tile_shapes import Grid, RegisterTile, TileShapes
from tilewright.optimize.search.measurement_history import MeasurementHistory, trace_key
from tilewright.tile.program import L1, REGISTER, Sizes, Sketch, TileProgram
from tilewright.verify.verifier import verify

MAX_SKETCHES = 8
"""Sketches that are compared: other lanes, and packing other operands, pay for other sizes."""

_Round = Sequence[TileProgram]
"""Programs that are measured before any that depend on their times."""


@dataclass(frozen=True, slots=True)
class ReuseEffort:
    """How many programs are measured at most.

    Attributes:
        blocks: numbers of parallel tasks.
        threads: register tiles per number of tasks.
        chunks: K-blocks per number of tasks, beside that of the first round.
        max_predicted: a program that is predicted to take more of the best predicted time is left out.
        max_measured: a number of tasks whose fastest program takes more of the fastest time of all is not varied.
    """

    blocks: int = MAX_BLOCKS
    threads: int = MAX_COUNTS
    chunks: int = MAX_COUNTS - 1
    max_predicted: float = 2.0
    max_measured: float = 1.2


@dataclass(frozen=True, slots=True, eq=False)
class ReuseSource:
    """A tuned program and its task."""

    reusable: ReusableTask
    program: TileProgram


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """A number of parallel tasks: its grid, the programs of the first round, and the best predicted time of these."""

    shapes: TileShapes
    grid: Grid
    programs: tuple[TileProgram, ...]
    predicted: float


def search_size_of(program: TileProgram) -> SearchSize:
    """How much the search near a program measures, by its sketch: element-wise programs have neither K-blocks nor
    unroll factors, those with lanes along the reduction no K-blocks."""
    if not program.problem.reduce:
        return PROCESSOR_SEARCH.frozen([SearchFeature.BLOCKS, SearchFeature.THREADS])
    if program.sketch.lane in program.problem.reduce:
        return PROCESSOR_SEARCH.frozen([SearchFeature.BLOCKS, SearchFeature.THREADS, SearchFeature.UNROLLING])
    return PROCESSOR_SEARCH


class ReuseSearch:
    """A search of a task from a source's program: asked for candidates, told their times; deterministic.

    Attributes:
        reusable: the task.
        source: what it starts from.
        ranges: by which factors the features of good programs differ from the source's.
    """

    def __init__(self, reusable: ReusableTask, source: ReuseSource, effort: ReuseEffort | None = None) -> None:
        self.reusable, self.source = reusable, source
        self.ranges = ReuseRanges.of(reusable.vector, source.reusable.vector)
        self._effort = effort or ReuseEffort()
        self._features = features_of(source.program)
        self._pending: list[TileProgram] = []
        self._programs_by_key: dict[str, TileProgram] = {}
        self._history = MeasurementHistory()
        self._nanoseconds: dict[TileProgram, float] = {}
        self._proposed: set[TileProgram] = set()
        self._rounds = self._hierarchy()

    @property
    def best(self) -> Measurement | None:
        """The fastest measurement told; None without one."""
        return self._history.fastest

    @property
    def trials(self) -> int:
        """Distinct candidates told, those that failed included."""
        return len(self._history)

    def programs_of(self, candidates: Sequence[Candidate]) -> list[TileProgram | None]:
        """The programs of candidates that were asked for; None for others."""
        return [self._programs_by_key.get(trace_key(c.trace)) for c in candidates]

    def ask(self, count: int) -> list[Candidate]:
        """The next candidates, at most `count`; of one round. An empty list where the search is done."""
        candidates: list[Candidate] = []
        while len(candidates) < count:
            if not self._pending:
                if candidates:
                    break
                following = next(self._rounds, None)
                if following is None:
                    break
                self._pending = [p for p in following if p not in self._proposed]
                continue
            program = self._pending.pop(0)
            self._proposed.add(program)
            candidate = self._candidate(program)
            if candidate is not None:
                candidates.append(candidate)
        return candidates

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """What became of candidates, of this search or of an earlier one of the task."""
        for m in self._history.add(measurements):
            self._note(trace_key(m.candidate.trace))

    def _note(self, key: str) -> None:
        """Keeps the time of a program that was asked for."""
        program, measurement = self._programs_by_key.get(key), self._history.get(key)
        if program is not None and measurement is not None and measurement.nanoseconds is not None:
            self._nanoseconds[program] = measurement.nanoseconds

    def _candidate(self, program: TileProgram) -> Candidate | None:
        """The candidate of a program; None where it is not legal, or has the steps of another one or a time already."""
        try:
            schedule = lower_for_machine(program, self.reusable.task, self.reusable.machine)
            verify(schedule.func)
        except (ScheduleError, VerifyError):
            return None
        key = trace_key(schedule.trace)
        is_new = key not in self._programs_by_key and key not in self._history
        self._programs_by_key.setdefault(key, program)
        self._note(key)
        return Candidate(schedule.trace) if is_new else None

    def _hierarchy(self) -> Iterator[_Round]:
        """The rounds of the search. Each is asked for when the times of those before are told."""
        for block in self._chosen_blocks():
            yield block.programs
            best = self._fastest(block.programs)
            if best is None or self._nanoseconds[best] > self._effort.max_measured * min(self._nanoseconds.values()):
                continue
            for variants in (self._chunks, self._other_unrolling, self._shorter_vectors):
                programs = variants(block.shapes, block.grid, best)
                yield programs
                best = self._fastest((best, *programs)) or best

    def _chosen_blocks(self) -> list[_Block]:
        """The numbers of parallel tasks that are measured, the best predicted ones first: some of the source's sketch
        before those of others."""
        sketches = self._sketches()
        blocks = [self._blocks(self._shapes(s)) for s in sketches]
        own, others = (blocks[0] if blocks else []), sorted((b for x in blocks[1:] for b in x), key=_predicted_of)
        count = self._effort.blocks
        first = own[: max(1, count - count // 2)]
        rest = sorted((*own[len(first) :], *others), key=_predicted_of)[: count - len(first)]
        chosen = sorted((*first, *rest), key=_predicted_of)
        limit = self._effort.max_predicted * min((b.predicted for b in chosen), default=0.0)
        return [b for b in chosen if b.predicted <= limit]

    def _fastest(self, programs: Sequence[TileProgram]) -> TileProgram | None:
        timed = [p for p in programs if p in self._nanoseconds]
        return min(timed, key=lambda p: self._nanoseconds[p], default=None)

    def _sketches(self) -> list[Sketch]:
        """The task's sketches: that of the source first, then those with its lanes, then others, with one order of
        loops each."""
        wanted = self.source.program.sketch

        def distance(s: Sketch) -> tuple[bool, int, bool]:
            return s.lane != wanted.lane, len(set(s.packed) ^ set(wanted.packed)), s.order != wanted.order

        first_order = {(s.lane, s.packed): s for _, forms in self.reusable.spaces for s in reversed(forms)}
        own_lane = [s for _, forms in self.reusable.spaces for s in forms if s.lane == wanted.lane]
        return sorted(dict.fromkeys([*own_lane, *first_order.values()]), key=distance)[:MAX_SKETCHES]

    def _shapes(self, sketch: Sketch) -> TileShapes:
        space = next(s for s, forms in self.reusable.spaces if sketch in forms)
        return TileShapes(space, sketch, self.reusable.machine, self.reusable.problem)

    def _blocks(self, shapes: TileShapes) -> list[_Block]:
        """The numbers of parallel tasks in their range with programs, the best predicted one first."""
        reduction, effort = self._unrolling(shapes), self._effort
        task_bytes = float(self._features.memory / self._features.blocks)
        grids = list(shapes.grids(self.ranges.blocks.scaled(float(self._features.blocks))).values())
        candidates: list[tuple[int, RegisterTile, Sizes]] = []
        for number, grid in enumerate(grids):
            tiles = shapes.tiles(grid, reduction, self.ranges.threads.scaled(float(self._features.threads)))
            for tile in tiles.values():
                sizes = shapes.sizes(grid, tile, shapes.k_block_near(grid, tile, task_bytes))
                candidates.append((number, tile, sizes))
        ranked = _ranked(shapes, [sizes for _, _, sizes in candidates])
        by_grid: dict[int, list[tuple[float, TileProgram]]] = {}
        seen: set[tuple[int, RegisterTile]] = set()
        for time, k, program in ranked:
            number, tile, _ = candidates[k]
            programs = by_grid.setdefault(number, [])
            is_far = bool(programs) and time > effort.max_predicted * programs[0][0]
            if (number, tile) not in seen and len(programs) < effort.threads and not is_far:
                programs.append((time, program))
            seen.add((number, tile))
        return [_Block(shapes, grids[n], tuple(p for _, p in own), own[0][0]) for n, own in by_grid.items()]

    def _unrolling(self, shapes: TileShapes) -> tuple[int, ...]:
        """Sizes of the register tile along reduction axes: those of the source, or the next smaller ones; whole axes
        where the source unrolls them whole."""
        source, target = self.source.program, shapes.problem
        sizes: list[int] = []
        for k in target.reduce:
            options, theirs = shapes.register_options[k], source.sizes[REGISTER][k]
            is_whole = theirs == source.problem.axes[k].extent and theirs > 1
            fitting = [r for r in options if r <= theirs]
            sizes.append(options[-1] if is_whole else max(fitting, default=options[0]))
        return tuple(sizes)

    def _chunks(self, shapes: TileShapes, grid: Grid, best: TileProgram) -> list[TileProgram]:
        """The program with other K-blocks whose memory is in its range, the best predicted ones."""
        aim = _with_margin(self.ranges.memory.scaled(float(self._features.memory)))
        tile, options = best.sizes[REGISTER], shapes.k_blocks(best.sizes[REGISTER])
        total = shapes.chunk_bytes(grid, options) * float(np.prod(grid))
        inside = [n for n, size in zip(options, total, strict=True) if float(size) in aim and n != _k_block(best)]
        return _best_of_each(shapes, [shapes.sizes(grid, tile, n) for n in inside])[: self._effort.chunks]

    def _other_unrolling(self, shapes: TileShapes, grid: Grid, best: TileProgram) -> list[TileProgram]:
        """The program with other unroll factors of a reduction axis."""
        options: list[Sizes] = []
        k_block = _k_block(best)
        for k in shapes.problem.reduce:
            for r in shapes.register_options[k] if k != best.sketch.lane else ():
                tile = tuple(r if a == k else n for a, n in enumerate(best.sizes[REGISTER]))
                if tile == best.sizes[REGISTER] or (k == best.sketch.k_block_axis and k_block and k_block % r):
                    continue
                options.append(shapes.sizes(grid, tile, k_block))
        return _best_of_each(shapes, options)

    def _shorter_vectors(self, shapes: TileShapes, grid: Grid, best: TileProgram) -> list[TileProgram]:
        """The program with vectors of half and a quarter of the lanes, where whole ones exceed the axis."""
        lane, lanes = best.sketch.lane, best.sketch.lanes
        extent, register = shapes.problem.axes[lane].extent, best.sizes[REGISTER][lane]
        programs: list[TileProgram] = []
        for shorter in (lanes // 2, lanes // 4):
            if shorter < MIN_LANES or extent % lanes == 0 or lane in shapes.problem.reduce:
                continue
            tasks = grid[shapes.problem.spatial.index(lane)]
            width = -(-extent // tasks // shorter) * shorter
            if width > register or width % lanes == 0:
                continue
            narrow = replace(shapes, sketch=replace(shapes.sketch, lanes=shorter))
            tile = tuple(width if a == lane else n for a, n in enumerate(best.sizes[REGISTER]))
            programs += _best_of_each(narrow, [narrow.sizes(grid, tile, _k_block(best))])
        return programs


def _ranked(shapes: TileShapes, groups: Sequence[Sizes]) -> list[tuple[float, int, TileProgram]]:
    """The legal programs of groups of candidates with their predicted times and groups, the best ones first; all are
    predicted at once."""
    if not groups:
        return []
    numbers = np.concatenate([np.full(len(g), k) for k, g in enumerate(groups)])
    sizes = np.concatenate(list(groups))
    legal = shapes.are_legal(sizes)
    sizes, numbers = sizes[legal], numbers[legal]
    if not len(sizes):
        return []
    times = shapes.times(sizes)
    order = np.argsort(times, kind="stable")
    sketch, problem = shapes.sketch, shapes.problem
    return [(float(times[k]), int(numbers[k]), TileProgram.of(problem, sketch, sizes[k])) for k in order]


def _best_of_each(shapes: TileShapes, groups: Sequence[Sizes]) -> list[TileProgram]:
    """The best predicted legal program of every group that has one, the best ones first."""
    best: dict[int, TileProgram] = {}
    for _, k, program in _ranked(shapes, groups):
        best.setdefault(k, program)
    return list(best.values())


def _predicted_of(block: _Block) -> float:
    return block.predicted


def _k_block(program: TileProgram) -> int | None:
    axis = program.sketch.k_block_axis
    return None if axis is None else program.sizes[L1][axis]


def _with_margin(values: FeatureRange) -> FeatureRange:
    """A range of bytes whose ends are a little wider, as tiles rarely divide an axis evenly."""
    return FeatureRange(values.lowest / 1.05, values.highest * 1.05)
