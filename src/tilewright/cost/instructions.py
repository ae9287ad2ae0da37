"""Cycles of the instructions of tile programs on one core: what a register tile issues, waits for and leaves.

A register tile whose reduction is a loop pays for starting that loop, for filling the pipeline and for the branch that
ends it. One that is written out as a whole, as windows and element-wise work are, has no branch of its own: while its
last additions wait, the instructions of the next tiles are already on their way, as many as the processor looks ahead.
"""

import numpy as np

from tilewright.cost.candidate_batch import CandidateBatch, k_block_count, sum_arrays
from tilewright.cost.features import Features
from tilewright.cost.footprint import Numbers
from tilewright.cost.hw_prefetch import is_streaming
from tilewright.machine.model import Machine
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, REGISTER, Mask, Sketch

ISSUE_WIDTH = 5.0
"""Instructions that start per cycle."""

LOAD_CYCLES = 1.25
"""Of a load, where ports would allow 1: they are not free every time."""

STEP_CYCLES = 0.75
"""What the loop around a step costs beyond its instructions."""

K_BLOCK_CYCLES = 12.0
"""Of a vector of totals, where the reduction is cut: zeros at first, moved to the results at the end."""

LOAD_FMA_CONTENTION = 0.15
"""Of a load beside multiply-adds that keep their pipes busy: cores lower their clock as more of their units work."""

LOOP_CYCLES = 4.0
"""Of starting and leaving a loop around steps."""

TILE_CYCLES = 12.0
"""Of starting and ending a register tile, beyond its loads and stores: a full pipeline, a mispredicted branch."""

NEW_STREAM_L2_FRACTION = 0.5
"""Of the latency of the second cache, what each place costs at which a register tile begins to read."""

SCATTER_CYCLES = 1.5
"""Of storing one element of a vector of results across the direction of the vector."""

SHUFFLE_CYCLES = 2.0
"""Of putting one vector together from every second element of vectors that were loaded."""

INSERT_CYCLES = 1.0
"""Of moving one element into or out of a vector: the port that shuffles takes one per cycle."""

NARROW_BITS, MAX_NARROW_VECTOR_BITS, NARROW_INSERT_FACTOR = 32, 256, 2.0
"""Elements of fewer bits go into vectors of at most so many bits; into a wider one each moves this many times."""

UNROLLED_TILE_CYCLES = 1.5
"""Of the counters and addresses around a register tile that is written out."""

RELOAD_FACTOR = 1.5
"""Loads for a vector of a tile that is written out that has no register: LLVM's order of the instructions lengthens the
lives of others, too."""

GUARD_CYCLES = 0.5
"""Per vector of results, of conditions on rows that a tile that is not whole has too many."""

ADD_LATENCY_FRACTION = 0.6
"""The latency of an addition alone, as a part of that of a multiplication and an addition."""

REORDER_WINDOW = 256.0
"""Instructions between the oldest one that waits and the youngest one that runs."""

TLB_MISS_CYCLES = 3.0
"""Of looking up one more, as far as it is not hidden."""

OVERLAPPED_TLB_MISS_CYCLES = 1.0
"""Of looking up one more where tiles do not wait for each other, so that several are looked up at once."""

MASK_PENALTY = 0.25
"""Of the loads of lanes that are masked in every step, as a part of the step."""

MASKED_LOAD_CYCLES = 0.5
"""Of loading a vector that is added as it is under the mask of results that are not whole."""

MASK_CYCLES = 1.0
"""Of making and applying the mask of a vector of element-wise work."""

MIN_MASK_REGISTER_BITS = 512
"""Vectors of so many bits come with registers for masks."""

MASKED_STORE_CYCLES = 12.0
"""Of storing a vector under a mask where no registers hold masks, in tiles at the end: others are told apart before.
Masks that are constants there leave one vector of each row that is not whole."""

MIN_FULL_VECTORS = 4
"""Whole vectors of element-wise work that get a loop of their own, without masks."""

MAX_UNROLLED_TILES = 4.0
"""Short tiles that LLVM writes out one after the other."""

SPILL_CYCLES = 4.0
"""Cycles per step and vector that has no register."""

RESPILL_CYCLES = 1.6
"""Cycles of each addition of a step to every sum, per vector that has no register: of many all are stored and loaded
for each of them (1.4 to 1.8 for tiles of 18 to 42 sums in 16 registers, with 2 and 4 additions in a step)."""

MAX_LLVM_UNROLL = 300.0
"""Instructions up to which LLVM writes out an innermost loop of known length as a whole."""


def tile_cycles(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, features: Features, machine: Machine
) -> Numbers:
    """Cycles of all instructions, on one core."""
    entries = _loop_entries(problem, batch, features)
    looped = entries > 0
    tile = looped_cycles(problem, sketch, batch, features, machine, entries)
    if not looped.all():
        tile = np.where(looped, tile, unrolled_cycles(problem, sketch, batch, features, machine))
    return features.register_tiles * _live_vector_fraction(problem, sketch, batch) * tile


def _live_vector_fraction(problem: Problem, sketch: Sketch, batch: CandidateBatch) -> Numbers:
    """Of the vectors of all register tiles, the part that begins before the end of the lane axis: where the extent is
    known, the last tile of a row has no others."""
    size, extent = batch.tiles[REGISTER][sketch.lane], batch.covered[sketch.lane]
    if not problem.axes[sketch.lane].is_static:
        return np.ones_like(size)
    return np.ceil(extent / sketch.lanes) * sketch.lanes / (np.ceil(extent / size) * size)


def _loop_entries(problem: Problem, batch: CandidateBatch, features: Features) -> Numbers:
    """How often loops of the reduction start, for one register tile and chunk: those that neither the program nor LLVM
    writes out; 0 where there are none."""
    body = (
        features.vector_operations
        + features.vector_loads
        + features.broadcast_loads
        + features.shuffled_vectors
        + features.gather_loads
    )
    entries, written = np.zeros_like(body), np.ones(len(body), np.bool_)
    counts = [batch.tiles[L1][k] / batch.tiles[REGISTER][k] for k in problem.reduce]
    for k in range(len(counts) - 1, -1, -1):
        body = body * counts[k]
        written &= body <= MAX_LLVM_UNROLL
        outside: Numbers = np.ones_like(body)
        for c in counts[:k]:
            outside = outside * c
        entries = entries + np.where(written | (counts[k] <= 1), 0.0, outside)
    return entries


def looped_cycles(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, features: Features, machine: Machine, entries: Numbers
) -> Numbers:
    """Cycles of one register tile with a loop over its reduction, which starts so often."""
    step = step_cycles(problem, sketch, batch, features, machine)
    results = features.accumulators
    ends = _k_block_cycles(sketch, batch, features, machine)
    last = results * sum(1.0 / (machine.store_ports if o.written else machine.load_ports) for o in problem.results)
    if sketch.transposed_store:
        last = last + results * sketch.lanes * SCATTER_CYCLES
    last = last / k_block_count(sketch, batch)
    if sketch.lane in problem.reduce:
        last = np.maximum(
            _horizontal_reduction_cycles(problem, sketch, batch, features, machine),
            _horizontal_reduction_latency(sketch, machine),
        )
    # what a register tile reads first comes from the second cache before anything is fetched ahead
    first = (
        NEW_STREAM_L2_FRACTION
        * features.stream_starts
        * machine.levels[min(1, len(machine.levels) - 1)].latency_ns
        * machine.ghz
    )
    # chunks of a tile by itself follow each other in what is read
    first = np.where(_is_sole_tile(problem, batch), first / k_block_count(sketch, batch), first)
    loops = entries * LOOP_CYCLES + first
    # the next tile reads the pages of a chunk again; where it reads all chunks first, those of all
    again = np.where(_is_sole_tile(problem, batch), features.all_pages, features.pages)
    looked_up = _tlb_miss_cycles(features, again, machine, TLB_MISS_CYCLES)
    return features.steps * step + loops + ends + last + looked_up + TILE_CYCLES


def _tlb_miss_cycles(features: Features, pages_between_uses: Numbers, machine: Machine, miss_cycles: float) -> Numbers:
    """Of the addresses of pages that a register tile reads: each is looked up again where more pages are read before it
    is read again than translations are kept at hand."""
    return np.where(pages_between_uses > machine.tlb_entries, features.pages * miss_cycles, 0.0)


def _k_block_cycles(sketch: Sketch, batch: CandidateBatch, features: Features, machine: Machine) -> Numbers:
    """Of a register tile over one chunk of a reduction that is cut: totals are loaded, added to and stored per chunk;
    they are zeros at first and results at the end."""
    count = k_block_count(sketch, batch)
    each = 1.0 / machine.load_ports + 1.0 / machine.store_ports + K_BLOCK_CYCLES / count
    return np.where(count > 1, features.accumulators * each, 0.0)


def _horizontal_reduction_cycles(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, features: Features, machine: Machine
) -> Numbers:
    """Of combining the lanes of sums along a reduction: vectors with each other, then halves with halves, and of
    storing each result by itself. The sums of several results do not wait for each other."""
    results = sum_arrays([features.accumulators * sketch.lanes / batch.tiles[REGISTER][sketch.lane]])
    halves = float(np.log2(sketch.lanes))
    return (features.accumulators - results) / machine.fma_pipes + results * (halves * INSERT_CYCLES + 1.0)


def _horizontal_reduction_latency(sketch: Sketch, machine: Machine) -> float:
    """Of the additions of halves of one result, each of which waits for the one before."""
    return float(np.log2(sketch.lanes)) * (machine.fma_cycles + INSERT_CYCLES)


def step_cycles(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, features: Features, machine: Machine
) -> Numbers:
    """Cycles of one step: a register tile over one (unrolled) piece of the reduction."""
    loads = (
        features.vector_loads
        + features.broadcast_loads
        + features.shuffled_vectors * SHUFFLE_CYCLES
        + features.gather_loads * INSERT_CYCLES
    )
    # vectors are put together by one of the pipes that multiply
    pipes = (features.vector_operations + features.shuffled_vectors) / machine.fma_pipes + loads * LOAD_FMA_CONTENTION
    ports = loads / machine.load_ports * LOAD_CYCLES
    # every accumulator is a chain: the next addition to it waits for the one before
    latency = _add_latency(problem, machine) * _additions_per_step(problem, sketch, batch)
    issue = (features.vector_operations + features.vector_loads + features.broadcast_loads + 2) / ISSUE_WIDTH
    longest = np.maximum(np.maximum(pipes, ports), np.maximum(latency, issue))
    return (
        longest
        + _spill_cycles(problem, sketch, batch, features, machine)
        + _masked_cycles(problem, sketch, batch, features)
        + STEP_CYCLES
    )


def unrolled_cycles(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, features: Features, machine: Machine
) -> Numbers:
    """Cycles of one register tile that is written out as a whole, among others of its kind."""
    results, steps = features.accumulators, features.steps
    masks = _masked_fraction(problem, sketch, batch) * (features.vector_loads + features.vector_stores) * MASK_CYCLES
    moved = features.shuffled_vectors + features.gather_loads * _insert_cycles(problem, sketch, batch)
    shuffles = steps * moved + features.scatter_stores * SCATTER_CYCLES + masks
    operations = steps * features.vector_operations
    pipes = np.maximum((operations + shuffles) / machine.fma_pipes, shuffles)
    read = sum(1.0 for o in problem.results if not o.written) * results
    stores = features.vector_stores + features.scatter_stores + sum(1.0 for o in problem.results if o.written) * results
    if sketch.transposed_store and problem.results:
        pipes, stores = pipes + results * sketch.lanes * SCATTER_CYCLES, stores * sketch.lanes
    if sketch.lane in problem.reduce:
        pipes = pipes + _horizontal_reduction_cycles(problem, sketch, batch, features, machine)
    elements = features.broadcast_loads - features.tile_invariant_broadcasts + features.gather_loads
    loads = (
        steps * (features.vector_loads + features.split_loads + elements) + features.step_invariant_broadcasts + read
    )
    loads = loads + _reload_count(features, machine)
    ports = np.maximum(loads / machine.load_ports, stores / machine.store_ports)
    instructions = operations + shuffles + loads + stores + 1.0
    issue = instructions / ISSUE_WIDTH
    # the additions to one result wait for each other, while the next register tiles are computed
    chain = _add_latency(problem, machine) * steps * _additions_per_step(problem, sketch, batch)
    # a tile whose totals stay in registers goes on with them in the next chunk
    joined = np.where(_is_sole_tile(problem, batch), k_block_count(sketch, batch), 1.0)
    latency = chain / np.clip(REORDER_WINDOW / (instructions * joined), 1.0, np.maximum(1.0, features.register_tiles))
    longest = np.maximum(np.maximum(pipes, ports), np.maximum(latency, issue))
    longest = longest + _guard_cycles(problem, sketch, batch, features, machine)
    # LLVM writes out several short tiles
    around = UNROLLED_TILE_CYCLES / np.clip(MAX_LLVM_UNROLL / 2.0 / instructions, 1.0, MAX_UNROLLED_TILES)
    cut = _k_block_cycles(sketch, batch, features, machine)
    around = around + _tlb_miss_cycles(features, features.pages, machine, OVERLAPPED_TLB_MISS_CYCLES)
    return longest + steps * _masked_cycles(problem, sketch, batch, features) + around + cut


def _insert_cycles(problem: Problem, sketch: Sketch, batch: CandidateBatch) -> Numbers:
    """Of moving one element into the vectors of a register tile of element-wise work, which LLVM makes one vector."""
    wide = batch.tiles[REGISTER][sketch.lane] * problem.bits > MAX_NARROW_VECTOR_BITS
    return np.where(wide & (problem.bits < NARROW_BITS), NARROW_INSERT_FACTOR, 1.0) * INSERT_CYCLES


def _add_latency(problem: Problem, machine: Machine) -> float:
    """Cycles until the next addition to a sum may start."""
    return machine.fma_cycles * (ADD_LATENCY_FRACTION if problem.is_plain_sum else 1.0)


def _is_sole_tile(problem: Problem, batch: CandidateBatch) -> Mask:
    """Whether an L1 tile has one register tile."""
    alone = np.ones(len(batch.covered[0]), np.bool_)
    for a in problem.spatial:
        alone &= batch.tiles[L1][a] <= batch.tiles[REGISTER][a]
    return alone


def _guard_cycles(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, features: Features, machine: Machine
) -> Numbers:
    """Of masks of results and of conditions on rows, where the last register tile of an axis is not whole; masks of the
    only one are constants."""
    total: Numbers = np.zeros_like(features.steps)
    for a in problem.spatial if problem.reduce else ():
        size, extent = batch.tiles[REGISTER][a], batch.family.extents[a]
        each: float | Numbers = GUARD_CYCLES
        if a == sketch.lane and machine.vector_bits < MIN_MASK_REGISTER_BITS:
            literal = problem.axes[a].is_static
            partial = np.where(extent % sketch.lanes != 0, sketch.lanes / size, 0.0) if literal else 1.0
            each = MASKED_STORE_CYCLES * partial / np.ceil(extent / size)
        elif a == sketch.lane:
            each = MASK_CYCLES
        total = total + np.where((extent % size != 0) & (extent > size), each, 0.0) * features.accumulators
    return total


def _reload_count(features: Features, machine: Machine) -> Numbers:
    """Loads of what lines of a window share but registers don't hold: at most as many as if half of it were not
    shared."""
    missing = np.maximum(features.accumulators + features.reused_vectors + 1 - machine.vector_registers, 0.0)
    apart = np.maximum(features.steps * (features.vector_operations - features.vector_loads), 0.0)
    each = 1.0 + features.split_loads / np.maximum(features.vector_loads, 1.0)
    return np.minimum(RELOAD_FACTOR * missing, 0.5 * apart) * each


def _masked_fraction(problem: Problem, sketch: Sketch, batch: CandidateBatch) -> Numbers:
    """The part of the vectors of element-wise work under masks: all, unless whole ones are many enough for a loop of
    their own."""
    size = batch.tiles[REGISTER][sketch.lane]
    extent = batch.family.extents[sketch.lane]
    tail = (extent % size != 0) & (extent // size < MIN_FULL_VECTORS) & (not problem.reduce)
    return np.where(tail, 1.0, 0.0)


def _additions_per_step(problem: Problem, sketch: Sketch, batch: CandidateBatch) -> Numbers:
    """What is added to one accumulator in a step, one after the other."""
    terms: Numbers = np.ones_like(batch.covered[0]) * (1.0 if problem.reduce else 0.0)
    for k in problem.reduce:
        if k != sketch.lane:
            terms = terms * batch.tiles[REGISTER][k]
    return terms


def _spill_cycles(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, features: Features, machine: Machine
) -> Numbers:
    """Of vectors that have no register: few are the dearer, as others wait for them; of many every sum is stored in
    every step and loaded again, or for every addition of it."""
    missing = np.maximum(features.registers - machine.vector_registers, 0.0)
    few = np.minimum(missing * SPILL_CYCLES, features.accumulators / machine.store_ports)
    again = np.minimum(missing, features.accumulators) * RESPILL_CYCLES * _additions_per_step(problem, sketch, batch)
    return np.maximum(few, again)


def _masked_cycles(problem: Problem, sketch: Sketch, batch: CandidateBatch, features: Features) -> Numbers:
    """What masks cost in a step, where the register tiles at the end of the lane axis read lanes under a mask: all
    operands that are neither packed nor private, as lanes without work may touch those."""
    packed = {k for k, _ in sketch.packed}
    plain = any(o.uses(sketch.lane) and k not in packed and not o.private for k, o in enumerate(problem.operands))
    if not plain:
        return np.zeros_like(batch.covered[0])
    size = batch.tiles[REGISTER][sketch.lane]
    extent = batch.family.extents[sketch.lane]
    masked = np.where(extent % size != 0, 1.0 / np.ceil(extent / size), 0.0)
    if is_streaming(problem) and sketch.lane not in problem.reduce:
        # every vector is loaded under a mask made anew, and no multiplication is there to hide it
        return np.where(masked > 0, MASKED_LOAD_CYCLES * features.vector_loads, 0.0)
    return masked * (MASK_PENALTY * features.vector_loads + 2.0 * SHUFFLE_CYCLES * features.shuffled_vectors)
