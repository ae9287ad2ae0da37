"""Core model: cycles of a program's instructions on one core, by issue width, ports, latencies and spills.

A register tile with a reduction loop pays for entering the loop, for filling the pipeline and for the branch that
leaves it. A fully unrolled one, as for windows and elementwise work, has no branch of its own: while its last additions
wait, out-of-order execution starts the instructions of the next tiles, as far as the reorder window reaches.
"""

import numpy as np

from tilewright.cost.candidate_batch import CandidateBatch, is_packed, k_block_count
from tilewright.cost.core_terms import CoreTerms, TileCycles
from tilewright.cost.distant_rows import row_starts
from tilewright.cost.features import Features
from tilewright.cost.footprint import Numbers
from tilewright.cost.reduction_kind import is_streaming
from tilewright.machine.model import Machine
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, MIN_FULL_VECTORS, REGISTER, Mask, Sketch
from tilewright.tile.transposed_columns import MIN_BYTES, MIN_COLUMNS

NARROW_BITS, MAX_NARROW_VECTOR_BITS = 32, 256
"""LLVM inserts narrower elements than this into vectors of at most so many bits one by one; into wider vectors each
insertion costs `narrow_insert_factor`."""

RELOAD_FACTOR = 1.5
"""Loads per vector of an unrolled tile that has no register: LLVM's order of the instructions lengthens the live ranges
of others, too."""

MAX_UNROLLED_TILES = 4.0
"""Short tiles that LLVM unrolls one after the other."""

MAX_LLVM_UNROLL = 300.0
"""Instructions up to which LLVM fully unrolls an innermost loop of known length."""


def tile_cycles(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, features: Features, machine: Machine
) -> TileCycles:
    """Cycles of all instructions of candidates, on one core."""
    # floats of 16 bits are computed as floats of 32
    machine = machine.with_ports_for(sketch.lanes * max(32, problem.bits))
    entries = _loop_entries(problem, batch, features)
    has_loop = entries > 0
    looped, unrolled = _looped_terms(problem, sketch, batch, features, machine, entries), None
    cycles = looped.total
    if not has_loop.all():
        unrolled = _unrolled_terms(problem, sketch, batch, features, machine)
        cycles = np.where(has_loop, cycles, unrolled.total)
    return TileCycles(looped, unrolled, has_loop, features.register_tiles, features.register_tiles * cycles)


def _loop_entries(problem: Problem, batch: CandidateBatch, features: Features) -> Numbers:
    """Number of reduction loops entered per register tile and K-block, of those that neither the program nor LLVM
    unrolls; 0 where there are none."""
    body = features.vector_operations + features.vector_loads + features.broadcast_loads
    body = body + features.shuffled_vectors + features.gather_loads + features.row_loads
    entries, is_unrolled = np.zeros_like(body), np.ones(len(body), np.bool_)
    counts = [batch.tiles[L1][k] / batch.tiles[REGISTER][k] for k in problem.reduce]
    for k in range(len(counts) - 1, -1, -1):
        body = body * counts[k]
        is_unrolled &= body <= MAX_LLVM_UNROLL
        outer_iterations: Numbers = np.ones_like(body)
        for c in counts[:k]:
            outer_iterations = outer_iterations * c
        entries = entries + np.where(is_unrolled | (counts[k] <= 1), 0.0, outer_iterations)
    return entries


def _looped_terms(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, features: Features, machine: Machine, entries: Numbers
) -> CoreTerms:
    """Cycles of one register tile with reduction loops that are entered so often."""
    cost, steps = machine.cost, features.steps
    step = _step_terms(problem, sketch, batch, features, machine)
    vectors = features.accumulators
    partial_sums = _k_block_cycles(sketch, batch, features, machine)
    results = vectors * sum(1.0 / (machine.store_ports if o.written else machine.load_ports) for o in problem.results)
    if sketch.transposed_store:
        results = results + _transposed_store_cycles(problem, sketch, batch, vectors, machine)
    results = results / k_block_count(sketch, batch)
    if sketch.lane in problem.reduce:
        results = np.maximum(
            _horizontal_reduction_cycles(sketch, batch, features, machine),
            _horizontal_reduction_latency(sketch, machine),
        )
    # the first data of a stream comes from L2, before anything is prefetched
    l2_latency = machine.levels[min(1, len(machine.levels) - 1)].latency_ns
    stream_starts = cost.new_stream_l2_fraction * features.stream_starts * l2_latency * machine.ghz
    is_sole = _is_sole_tile(problem, batch)
    # the K-blocks of a sole tile continue the streams
    stream_starts = np.where(is_sole, stream_starts / k_block_count(sketch, batch), stream_starts)
    stream_starts = stream_starts + row_starts(problem, sketch, batch, machine) * cost.row_start_cycles
    loop_entry = entries * cost.loop_cycles
    # the next tile reads the pages of a K-block again; where a tile computes all K-blocks first, those of all
    pages_between_uses = np.where(is_sole, features.all_pages, features.pages)
    tlb_misses = _tlb_miss_cycles(features, pages_between_uses, machine, cost.tlb_miss_cycles)
    exposed = {name: (*term, steps) for name, term in step.exposed.items()} | {
        "loop_entry": (loop_entry,), "stream_starts": (stream_starts,), "k_blocks": (partial_sums,),
        "results": (results,), "tlb_misses": (tlb_misses,), "tile_entry": (cost.tile_cycles,),
    }  # fmt: skip
    total = steps * step.total + (loop_entry + stream_starts) + partial_sums + results + tlb_misses + cost.tile_cycles
    overlapping, contained = (
        {name: (*term, steps) for name, term in x.items()} for x in (step.overlapping, step.contained)
    )
    return CoreTerms(overlapping, exposed, contained, total)


def _tlb_miss_cycles(features: Features, pages_between_uses: Numbers, machine: Machine, miss_cycles: float) -> Numbers:
    """TLB misses of a register tile: one per page where more pages are read before it is read again than the
    first-level TLB holds."""
    return np.where(pages_between_uses > machine.tlb_entries, features.pages * miss_cycles, 0.0)


def _transposed_store_cycles(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, vectors: Numbers, machine: Machine
) -> Numbers:
    """Storing a register tile of so many vectors along another axis than the lanes: transposed in registers where that
    axis has enough rows, else one element at a time."""
    cost = machine.cost
    by_element = vectors * sketch.lanes * cost.scatter_cycles
    # by the index, as axes of one element have any stride
    contiguous = problem.results[-1].index[-1]
    axis = next((a for a in problem.spatial if a != sketch.lane and contiguous[a] == 1), None)
    if axis is None or problem.bits < 8 * MIN_BYTES:
        return by_element
    rows = batch.tiles[REGISTER][axis]
    stored_vectors = vectors * sketch.lanes / rows * np.ceil(rows / sketch.lanes)
    shuffle_cycles = float(np.log2(sketch.lanes)) * cost.transpose_shuffle_cycles
    transposed = stored_vectors * (shuffle_cycles + cost.stack_tile_cycles)
    return np.where(rows >= MIN_COLUMNS, transposed, by_element)


def _k_block_cycles(sketch: Sketch, batch: CandidateBatch, features: Features, machine: Machine) -> Numbers:
    """Partial sums of a register tile over one K-block: loaded, added to and stored; zeroed at first, moved to the
    results at the end."""
    blocks = k_block_count(sketch, batch)
    per_vector = 1.0 / machine.load_ports + 1.0 / machine.store_ports + machine.cost.k_block_cycles / blocks
    return np.where(blocks > 1, features.accumulators * per_vector, 0.0)


def _horizontal_reduction_cycles(
    sketch: Sketch, batch: CandidateBatch, features: Features, machine: Machine
) -> Numbers:
    """Combining the lanes of a vectorised reduction, vectors with each other and then halves with halves, and storing
    each result by itself. The reductions of several results are independent."""
    results = features.accumulators * sketch.lanes / batch.tiles[REGISTER][sketch.lane]
    halvings = float(np.log2(sketch.lanes))
    vector_additions = (features.accumulators - results) / machine.fma_pipes
    return vector_additions + results * (halvings * machine.cost.insert_cycles + 1.0)


def _horizontal_reduction_latency(sketch: Sketch, machine: Machine) -> float:
    """The dependency chain of one result's horizontal reduction."""
    return float(np.log2(sketch.lanes)) * (machine.fma_cycles + machine.cost.insert_cycles)


def _step_terms(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, features: Features, machine: Machine
) -> CoreTerms:
    """Cycles of one step: a register tile over one unrolled piece of the reduction."""
    cost = machine.cost
    shuffles = features.shuffled_vectors * cost.shuffle_cycles
    inserts = features.gather_loads * cost.insert_cycles
    loads = features.vector_loads + features.split_loads + features.broadcast_loads + shuffles + inserts
    # vectors are assembled by one of the pipes that multiply
    operations = features.vector_operations + features.shuffled_vectors
    multiply_adds, contention = operations / machine.fma_pipes, loads * cost.load_fma_contention
    pipes = multiply_adds + contention
    ports = _port_cycles(loads, features.broadcast_loads, machine) * cost.load_cycles
    # every accumulator is a dependency chain
    latency = _add_latency(problem, machine) * _additions_per_step(problem, sketch, batch)
    instructions = features.vector_operations + features.vector_loads + features.broadcast_loads + 2
    issue = instructions / cost.issue_width
    longest = np.maximum(np.maximum(pipes, ports), np.maximum(latency, issue))
    spills = _spill_cycles(problem, sketch, batch, features, machine) + _waiting_cycles(features, machine)
    masks = _masked_cycles(problem, sketch, batch, features, machine)
    per_load = cost.load_cycles / machine.load_ports
    return CoreTerms(
        {"execution": (pipes,), "load_store_ports": (ports,), "add_latency": (latency,), "issue": (issue,)},
        {"spills": (spills,), "masks": (masks,), "step_loop": (cost.step_cycles,)},
        {"multiply_adds": (multiply_adds,), "load_contention": (contention,), "shuffles": (shuffles, per_load),
         "inserts": (inserts, per_load), "vector_loads": (features.vector_loads, per_load),
         "split_loads": (features.split_loads, per_load),
         "broadcast_loads": (features.broadcast_loads, cost.broadcast_load_factor, per_load)},
        longest + spills + masks + cost.step_cycles,
    )  # fmt: skip


def _port_cycles(loads: Numbers, broadcasts: Numbers, machine: Machine) -> Numbers:
    """Cycles of the load ports for so many loads, broadcasts among them."""
    return (loads - broadcasts * (1.0 - machine.cost.broadcast_load_factor)) / machine.load_ports


def _unrolled_terms(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, features: Features, machine: Machine
) -> CoreTerms:
    """Cycles of one fully unrolled register tile, among others of its kind."""
    cost = machine.cost
    vectors, steps = features.accumulators, features.steps
    masked_vectors = _masked_fraction(problem, sketch, batch) * (features.vector_loads + features.vector_stores)
    inserts = features.shuffled_vectors + features.gather_loads * _insert_cycles(problem, sketch, batch, machine)
    inserts = inserts + features.transposed_vectors * float(np.log2(sketch.lanes)) * cost.transpose_shuffle_cycles
    shuffles = steps * inserts + features.scatter_stores * cost.scatter_cycles + masked_vectors * cost.mask_cycles
    operations = steps * features.vector_operations
    pipes = np.maximum((operations + shuffles) / machine.fma_pipes, shuffles)
    result_loads = sum(1.0 for o in problem.results if not o.written) * vectors
    result_stores = sum(1.0 for o in problem.results if o.written) * vectors
    stores = features.vector_stores + features.scatter_stores + result_stores
    if sketch.transposed_store and problem.results:
        pipes = pipes + _transposed_store_cycles(problem, sketch, batch, vectors, machine)
    if sketch.lane in problem.reduce:
        pipes = pipes + _horizontal_reduction_cycles(sketch, batch, features, machine)
    scalar_loads = (
        features.broadcast_loads - features.tile_invariant_broadcasts + features.gather_loads + features.row_loads
    )
    loads = steps * (features.vector_loads + features.split_loads + scalar_loads)
    loads = loads + features.step_invariant_broadcasts + result_loads
    loads = loads + _reload_count(features, machine)
    contention = loads * cost.load_fma_contention if problem.has_reuse else 0.0
    pipes = pipes + contention
    broadcasts = steps * (features.broadcast_loads - features.tile_invariant_broadcasts)
    load_cycles = _port_cycles(loads, broadcasts + features.step_invariant_broadcasts, machine)
    store_cycles = stores / machine.store_ports
    ports = np.maximum(load_cycles, store_cycles)
    instructions = operations + shuffles + loads + stores + 1.0
    issue = instructions / cost.issue_width
    # the additions to one result are a dependency chain; the next register tiles execute meanwhile
    chain = _add_latency(problem, machine) * steps * _additions_per_step(problem, sketch, batch)
    # a sole tile keeps its accumulators in registers and continues with them in the next K-block
    chained_blocks = np.where(_is_sole_tile(problem, batch), k_block_count(sketch, batch), 1.0)
    tiles_in_window = cost.reorder_window / (instructions * chained_blocks)
    latency = chain / np.clip(tiles_in_window, 1.0, np.maximum(1.0, features.register_tiles))
    longest = np.maximum(np.maximum(pipes, ports), np.maximum(latency, issue))
    guards = _guard_cycles(problem, sketch, batch, features, machine)
    # LLVM unrolls several short tiles
    overhead = cost.unrolled_tile_cycles / np.clip(MAX_LLVM_UNROLL / 2.0 / instructions, 1.0, MAX_UNROLLED_TILES)
    partial_sums = _k_block_cycles(sketch, batch, features, machine)
    tlb_misses = _tlb_miss_cycles(features, features.pages, machine, cost.overlapped_tlb_miss_cycles)
    masks = steps * _masked_cycles(problem, sketch, batch, features, machine)
    is_spilled = features.accumulators >= machine.vector_registers
    spills = np.where(is_spilled, steps * _spill_cycles(problem, sketch, batch, features, machine), 0.0)
    return CoreTerms(
        {"execution": (pipes,), "load_store_ports": (ports,), "add_latency": (latency,), "issue": (issue,)},
        {"guards": (guards,), "masks": (masks,), "tile_entry": (overhead,), "tlb_misses": (tlb_misses,),
         "k_blocks": (partial_sums,), "spills": (spills,)},
        {"multiply_adds": (operations, 1.0 / machine.fma_pipes), "shuffles": (shuffles,),
         "loads": (load_cycles,), "stores": (store_cycles,)},
        longest + guards + masks + (overhead + tlb_misses) + partial_sums + spills,
    )  # fmt: skip


def _insert_cycles(problem: Problem, sketch: Sketch, batch: CandidateBatch, machine: Machine) -> Numbers:
    """Inserting one element into the vectors of a register tile of elementwise work, which LLVM makes one vector."""
    cost = machine.cost
    is_wide = batch.tiles[REGISTER][sketch.lane] * problem.bits > MAX_NARROW_VECTOR_BITS
    return np.where(is_wide & (problem.bits < NARROW_BITS), cost.narrow_insert_factor, 1.0) * cost.insert_cycles


def _add_latency(problem: Problem, machine: Machine) -> float:
    """Cycles until the next addition to an accumulator may start."""
    return machine.fma_cycles * (machine.cost.add_latency_fraction if problem.is_plain_sum else 1.0)


def _is_sole_tile(problem: Problem, batch: CandidateBatch) -> Mask:
    """Whether an L1 tile has a single register tile."""
    is_sole = np.ones(len(batch.covered[0]), np.bool_)
    for a in problem.spatial:
        is_sole &= batch.tiles[L1][a] <= batch.tiles[REGISTER][a]
    return is_sole


def _guard_cycles(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, features: Features, machine: Machine
) -> Numbers:
    """Masks of results and row conditions, where the last register tile of an axis is partial; the masks of an only
    tile are constants."""
    cost = machine.cost
    total: Numbers = np.zeros_like(features.steps)
    for a in problem.spatial if problem.reduce else ():
        size, extent = batch.tiles[REGISTER][a], batch.family.extents[a]
        per_vector: float | Numbers = cost.guard_cycles
        if a == sketch.lane and machine.vector_bits < cost.min_mask_register_bits:
            is_static = problem.axes[a].is_static
            partial = np.where(extent % sketch.lanes != 0, sketch.lanes / size, 0.0) if is_static else 1.0
            per_vector = cost.masked_store_cycles * partial / np.ceil(extent / size)
        elif a == sketch.lane:
            per_vector = cost.mask_cycles
        total = total + np.where((extent % size != 0) & (extent > size), per_vector, 0.0) * features.accumulators
    return total


def _reload_count(features: Features, machine: Machine) -> Numbers:
    """Loads of vectors that output rows of a window share but registers do not hold: at most as many as if half of the
    window were not shared."""
    unallocated = np.maximum(features.accumulators + features.reused_vectors + 1 - machine.vector_registers, 0.0)
    shared = np.maximum(features.steps * (features.vector_operations - features.vector_loads), 0.0)
    loads_per_vector = 1.0 + features.split_loads / np.maximum(features.vector_loads, 1.0)
    return np.minimum(RELOAD_FACTOR * unallocated, 0.5 * shared) * loads_per_vector


def _masked_fraction(problem: Problem, sketch: Sketch, batch: CandidateBatch) -> Numbers:
    """Share of the vectors of elementwise work that are masked: all, unless there are enough full ones for a loop of
    their own."""
    size = batch.tiles[REGISTER][sketch.lane]
    extent = batch.family.extents[sketch.lane]
    is_masked = (extent % size != 0) & (extent // size < MIN_FULL_VECTORS) & (not problem.reduce)
    return np.where(is_masked, 1.0, 0.0)


def _additions_per_step(problem: Problem, sketch: Sketch, batch: CandidateBatch) -> Numbers:
    """Dependent additions to one accumulator in a step."""
    terms: Numbers = np.ones_like(batch.covered[0]) * (1.0 if problem.reduce else 0.0)
    for k in problem.reduce:
        if k != sketch.lane:
            terms = terms * batch.tiles[REGISTER][k]
    return terms


def _spill_cycles(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, features: Features, machine: Machine
) -> Numbers:
    """Cycles of vectors without a register: few cost more each, as others wait for them; of many, every accumulator is
    stored and loaded for each of its additions."""
    cost = machine.cost
    unallocated = np.maximum(features.registers - machine.vector_registers, 0.0)
    spills = np.minimum(unallocated * cost.spill_cycles, features.accumulators / machine.store_ports)
    respilled = np.minimum(unallocated, features.accumulators) * cost.respill_cycles
    return np.maximum(spills, respilled) * _additions_per_step(problem, sketch, batch)


def _waiting_cycles(features: Features, machine: Machine) -> Numbers:
    """Cycles of a step for vectors of a window with strides that wait for their reuse without a register."""
    registers = features.registers
    unallocated = registers + features.waiting_vectors - np.maximum(registers, machine.vector_registers)
    return np.maximum(unallocated, 0.0) * RELOAD_FACTOR * machine.cost.load_cycles


def _masked_cycles(
    problem: Problem, sketch: Sketch, batch: CandidateBatch, features: Features, machine: Machine
) -> Numbers:
    """Masked loads of a step, in register tiles at the end of the lane axis: of operands that are neither packed nor
    private, as inactive lanes may access those."""
    cost, operands = machine.cost, enumerate(problem.operands)
    if not any(o.uses(sketch.lane) and not is_packed(sketch, k) and not o.private for k, o in operands):
        return np.zeros_like(batch.covered[0])
    size, extent = batch.tiles[REGISTER][sketch.lane], batch.family.extents[sketch.lane]
    masked_tiles = np.where(extent % size != 0, 1.0 / np.ceil(extent / size), 0.0)
    if is_streaming(problem, cost) and sketch.lane not in problem.reduce:
        # every vector is loaded under a new mask, and no multiplication hides it
        return np.where(masked_tiles > 0, cost.masked_load_cycles * features.vector_loads, 0.0)
    shuffled = 2.0 * cost.shuffle_cycles * features.shuffled_vectors
    return masked_tiles * (cost.mask_penalty * features.vector_loads + shuffled)
