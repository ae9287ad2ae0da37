"""Cycles of the instructions of tile programs on one core: what a register tile issues, waits for and leaves.

A register tile whose reduction is a loop pays for starting that loop, for filling the pipeline and for the branch that
ends it. One that is written out as a whole, as windows and element-wise work are, has no branch of its own: while its
last additions wait, the instructions of the next tiles are already on their way, as many as the processor looks ahead.
"""

import numpy as np

from tilewright.machine.model import Machine
from tilewright.tile.columns import Columns, chunks, sum_of
from tilewright.tile.features import Features
from tilewright.tile.following import used_once
from tilewright.tile.footprint import Numbers
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, REGISTER, Form, Mask

ISSUE = 5.0
"""Instructions that start per cycle."""

LOAD_CYCLES = 1.25
"""Of a load, where ports would allow 1: they are not free every time."""

STEP_CYCLES = 0.75
"""What the loop around a step costs beyond its instructions."""

CUT_CYCLES = 12.0
"""Of a vector of totals, where the reduction is cut: zeros at first, moved to the results at the end."""

DRAW_CYCLES = 0.15
"""Of a load beside multiply-adds that keep their pipes busy: cores lower their clock as more of their units work."""

LOOP_CYCLES = 4.0
"""Of starting and leaving a loop around steps."""

TILE_CYCLES = 12.0
"""Of starting and ending a register tile, beyond its loads and stores: a full pipeline, a mispredicted branch."""

START = 0.5
"""Of the latency of the second cache, what each place costs at which a register tile begins to read."""

SPREAD_CYCLES = 1.5
"""Of storing one element of a vector of results across the direction of the vector."""

GATHER_CYCLES = 2.0
"""Of putting one vector together from every second element of vectors that were loaded."""

APART_CYCLES = 1.0
"""Of moving one element into or out of a vector: the port that shuffles takes one per cycle."""

NARROW_BITS, NARROW_VECTOR_BITS, NARROW_PART = 32, 256, 2.0
"""Elements of fewer bits go into vectors of at most so many bits; into a wider one each moves this many times."""

FLAT_CYCLES = 1.5
"""Of the counters and addresses around a register tile that is written out."""

RELOADED = 1.5
"""Loads for a vector of a tile that is written out that has no register: LLVM's order of the instructions lengthens the
lives of others, too."""

GUARD_CYCLES = 0.5
"""Per vector of results, of conditions on rows that a tile that is not whole has too many."""

ADDITION = 0.6
"""The latency of an addition alone, as a part of that of a multiplication and an addition."""

IN_FLIGHT = 256.0
"""Instructions between the oldest one that waits and the youngest one that runs."""

TRANSLATION_CYCLES = 3.0
"""Of looking up one more, as far as it is not hidden."""

OVERLAPPED_CYCLES = 1.0
"""Of looking up one more where tiles do not wait for each other, so that several are looked up at once."""

MASK_PENALTY = 0.25
"""Of the loads of lanes that are masked in every step, as a part of the step."""

MASKED_LOAD_CYCLES = 0.5
"""Of loading a vector that is added as it is under the mask of results that are not whole."""

MASK_CYCLES = 1.0
"""Of making and applying the mask of a vector of element-wise work."""

MASKS_BITS = 512
"""Vectors of so many bits come with registers for masks."""

MASKED_STORE_CYCLES = 12.0
"""Of storing a vector under a mask where no registers hold masks, in tiles at the end: others are told apart before.
Masks that are constants there leave one vector of each row that is not whole."""

LEAST_FULL = 4
"""Whole vectors of element-wise work that get a loop of their own, without masks."""

MOST_UNROLLED = 4.0
"""Short tiles that LLVM writes out one after the other."""

SPILLED = 4.0
"""Cycles per step and vector that has no register."""

SPILLED_AGAIN = 1.6
"""Cycles of each addition of a step to every sum, per vector that has no register: of many all are stored and loaded
for each of them (1.4 to 1.8 for tiles of 18 to 42 sums in 16 registers, with 2 and 4 additions in a step)."""

COMPILER_UNROLLS = 300.0
"""Instructions up to which LLVM writes out an innermost loop of known length as a whole."""


def cycles(problem: Problem, form: Form, columns: Columns, found: Features, machine: Machine) -> Numbers:
    """Cycles of all instructions, on one core."""
    entries = _entries(problem, columns, found)
    looped = entries > 0
    tile = looped_cycles(problem, form, columns, found, machine, entries)
    if not looped.all():
        tile = np.where(looped, tile, flat_cycles(problem, form, columns, found, machine))
    return found.micro_tiles * _vectors_present(problem, form, columns) * tile


def _vectors_present(problem: Problem, form: Form, columns: Columns) -> Numbers:
    """Of the vectors of all register tiles, the part that begins before the end of the lane axis: where the extent is
    known, the last tile of a row has no others."""
    size, extent = columns.tiles[REGISTER][form.lane], columns.whole[form.lane]
    if not problem.axes[form.lane].literal:
        return np.ones_like(size)
    return np.ceil(extent / form.lanes) * form.lanes / (np.ceil(extent / size) * size)


def _entries(problem: Problem, columns: Columns, found: Features) -> Numbers:
    """How often loops of the reduction start, for one register tile and chunk: those that neither the program nor LLVM
    writes out; 0 where there are none."""
    body = found.multiply_adds + found.vector_loads + found.element_loads + found.gathers + found.apart
    entries, written = np.zeros_like(body), np.ones(len(body), np.bool_)
    counts = [columns.tiles[L1][k] / columns.tiles[REGISTER][k] for k in problem.reduce]
    for k in range(len(counts) - 1, -1, -1):
        body = body * counts[k]
        written &= body <= COMPILER_UNROLLS
        outside: Numbers = np.ones_like(body)
        for c in counts[:k]:
            outside = outside * c
        entries = entries + np.where(written | (counts[k] <= 1), 0.0, outside)
    return entries


def looped_cycles(
    problem: Problem, form: Form, columns: Columns, found: Features, machine: Machine, entries: Numbers
) -> Numbers:
    """Cycles of one register tile with a loop over its reduction, which starts so often."""
    step = step_cycles(problem, form, columns, found, machine)
    results = found.accumulators
    ends = _cut_cycles(form, columns, found, machine)
    last = results * sum(1.0 / (machine.store_ports if o.written else machine.load_ports) for o in problem.results)
    if form.transposed:
        last = last + results * form.lanes * SPREAD_CYCLES
    last = last / chunks(form, columns)
    if form.lane in problem.reduce:
        last = np.maximum(_combined(problem, form, columns, found, machine), _combining_waits(form, machine))
    # what a register tile reads first comes from the second cache before anything is fetched ahead
    first = START * found.starts * machine.levels[min(1, len(machine.levels) - 1)].latency_ns * machine.ghz
    # chunks of a tile by itself follow each other in what is read
    first = np.where(_alone(problem, columns), first / chunks(form, columns), first)
    loops = entries * LOOP_CYCLES + first
    # the next tile reads the pages of a chunk again; where it reads all chunks first, those of all
    again = np.where(_alone(problem, columns), found.all_pages, found.pages)
    looked_up = _looked_up(found, again, machine, TRANSLATION_CYCLES)
    return found.steps * step + loops + ends + last + looked_up + TILE_CYCLES


def _looked_up(found: Features, again: Numbers, machine: Machine, each: float) -> Numbers:
    """Of the addresses of pages that a register tile reads: each is looked up again where more pages are read before it
    is read again than translations are kept at hand."""
    return np.where(again > machine.tlb_entries, found.pages * each, 0.0)


def _cut_cycles(form: Form, columns: Columns, found: Features, machine: Machine) -> Numbers:
    """Of a register tile over one chunk of a reduction that is cut: totals are loaded, added to and stored per chunk;
    they are zeros at first and results at the end."""
    count = chunks(form, columns)
    each = 1.0 / machine.load_ports + 1.0 / machine.store_ports + CUT_CYCLES / count
    return np.where(count > 1, found.accumulators * each, 0.0)


def _combined(problem: Problem, form: Form, columns: Columns, found: Features, machine: Machine) -> Numbers:
    """Of combining the lanes of sums along a reduction: vectors with each other, then halves with halves, and of
    storing each result by itself. The sums of several results do not wait for each other."""
    results = sum_of([found.accumulators * form.lanes / columns.tiles[REGISTER][form.lane]])
    halves = float(np.log2(form.lanes))
    return (found.accumulators - results) / machine.fma_pipes + results * (halves * APART_CYCLES + 1.0)


def _combining_waits(form: Form, machine: Machine) -> float:
    """Of the additions of halves of one result, each of which waits for the one before."""
    return float(np.log2(form.lanes)) * (machine.fma_cycles + APART_CYCLES)


def step_cycles(problem: Problem, form: Form, columns: Columns, found: Features, machine: Machine) -> Numbers:
    """Cycles of one step: a register tile over one (unrolled) piece of the reduction."""
    loads = found.vector_loads + found.element_loads + found.gathers * GATHER_CYCLES + found.apart * APART_CYCLES
    # vectors are put together by one of the pipes that multiply
    pipes = (found.multiply_adds + found.gathers) / machine.fma_pipes + loads * DRAW_CYCLES
    ports = loads / machine.load_ports * LOAD_CYCLES
    # every accumulator is a chain: the next addition to it waits for the one before
    latency = _adding(problem, machine) * _terms(problem, form, columns)
    issue = (found.multiply_adds + found.vector_loads + found.element_loads + 2) / ISSUE
    longest = np.maximum(np.maximum(pipes, ports), np.maximum(latency, issue))
    return (
        longest
        + _spilled(problem, form, columns, found, machine)
        + _masked_cycles(problem, form, columns, found)
        + STEP_CYCLES
    )


def flat_cycles(problem: Problem, form: Form, columns: Columns, found: Features, machine: Machine) -> Numbers:
    """Cycles of one register tile that is written out as a whole, among others of its kind."""
    results, steps = found.accumulators, found.steps
    masks = _moved_masked(problem, form, columns) * (found.vector_loads + found.stores) * MASK_CYCLES
    moved = found.gathers + found.apart * _apart_cycles(problem, form, columns)
    shuffles = steps * moved + found.spread * SPREAD_CYCLES + masks
    operations = steps * found.multiply_adds
    pipes = np.maximum((operations + shuffles) / machine.fma_pipes, shuffles)
    read = sum(1.0 for o in problem.results if not o.written) * results
    stores = found.stores + found.spread + sum(1.0 for o in problem.results if o.written) * results
    if form.transposed and problem.results:
        pipes, stores = pipes + results * form.lanes * SPREAD_CYCLES, stores * form.lanes
    if form.lane in problem.reduce:
        pipes = pipes + _combined(problem, form, columns, found, machine)
    elements = found.element_loads - found.hoisted + found.apart
    loads = steps * (found.vector_loads + found.crossings + elements) + found.fixed + read
    loads = loads + _reloads(found, machine)
    ports = np.maximum(loads / machine.load_ports, stores / machine.store_ports)
    instructions = operations + shuffles + loads + stores + 1.0
    issue = instructions / ISSUE
    # the additions to one result wait for each other, while the next register tiles are computed
    chain = _adding(problem, machine) * steps * _terms(problem, form, columns)
    # a tile whose totals stay in registers goes on with them in the next chunk
    joined = np.where(_alone(problem, columns), chunks(form, columns), 1.0)
    latency = chain / np.clip(IN_FLIGHT / (instructions * joined), 1.0, np.maximum(1.0, found.micro_tiles))
    longest = np.maximum(np.maximum(pipes, ports), np.maximum(latency, issue))
    longest = longest + _conditions(problem, form, columns, found, machine)
    # LLVM writes out several short tiles
    around = FLAT_CYCLES / np.clip(COMPILER_UNROLLS / 2.0 / instructions, 1.0, MOST_UNROLLED)
    cut = _cut_cycles(form, columns, found, machine)
    around = around + _looked_up(found, found.pages, machine, OVERLAPPED_CYCLES)
    return longest + steps * _masked_cycles(problem, form, columns, found) + around + cut


def _apart_cycles(problem: Problem, form: Form, columns: Columns) -> Numbers:
    """Of moving one element into the vectors of a register tile of element-wise work, which LLVM makes one vector."""
    wide = columns.tiles[REGISTER][form.lane] * problem.bits > NARROW_VECTOR_BITS
    return np.where(wide & (problem.bits < NARROW_BITS), NARROW_PART, 1.0) * APART_CYCLES


def _adding(problem: Problem, machine: Machine) -> float:
    """Cycles until the next addition to a sum may start."""
    return machine.fma_cycles * (ADDITION if problem.added else 1.0)


def _alone(problem: Problem, columns: Columns) -> Mask:
    """Whether an L1 tile has one register tile."""
    alone = np.ones(len(columns.whole[0]), np.bool_)
    for a in problem.spatial:
        alone &= columns.tiles[L1][a] <= columns.tiles[REGISTER][a]
    return alone


def _conditions(problem: Problem, form: Form, columns: Columns, found: Features, machine: Machine) -> Numbers:
    """Of masks of results and of conditions on rows, where the last register tile of an axis is not whole; masks of the
    only one are constants."""
    total: Numbers = np.zeros_like(found.steps)
    for a in problem.spatial if problem.reduce else ():
        size, extent = columns.tiles[REGISTER][a], columns.family.extents[a]
        each: float | Numbers = GUARD_CYCLES
        if a == form.lane and machine.vector_bits < MASKS_BITS:
            literal = problem.axes[a].literal
            partial = np.where(extent % form.lanes != 0, form.lanes / size, 0.0) if literal else 1.0
            each = MASKED_STORE_CYCLES * partial / np.ceil(extent / size)
        elif a == form.lane:
            each = MASK_CYCLES
        total = total + np.where((extent % size != 0) & (extent > size), each, 0.0) * found.accumulators
    return total


def _reloads(found: Features, machine: Machine) -> Numbers:
    """Loads of what lines of a window share but registers don't hold: at most as many as if half of it were not
    shared."""
    missing = np.maximum(found.accumulators + found.again + 1 - machine.vector_registers, 0.0)
    apart = np.maximum(found.steps * (found.multiply_adds - found.vector_loads), 0.0)
    each = 1.0 + found.crossings / np.maximum(found.vector_loads, 1.0)
    return np.minimum(RELOADED * missing, 0.5 * apart) * each


def _moved_masked(problem: Problem, form: Form, columns: Columns) -> Numbers:
    """The part of the vectors of element-wise work under masks: all, unless whole ones are many enough for a loop of
    their own."""
    size = columns.tiles[REGISTER][form.lane]
    extent = columns.family.extents[form.lane]
    tail = (extent % size != 0) & (extent // size < LEAST_FULL) & (not problem.reduce)
    return np.where(tail, 1.0, 0.0)


def _terms(problem: Problem, form: Form, columns: Columns) -> Numbers:
    """What is added to one accumulator in a step, one after the other."""
    terms: Numbers = np.ones_like(columns.whole[0]) * (1.0 if problem.reduce else 0.0)
    for k in problem.reduce:
        if k != form.lane:
            terms = terms * columns.tiles[REGISTER][k]
    return terms


def _spilled(problem: Problem, form: Form, columns: Columns, found: Features, machine: Machine) -> Numbers:
    """Of vectors that have no register: few are the dearer, as others wait for them; of many every sum is stored in
    every step and loaded again, or for every addition of it."""
    missing = np.maximum(found.registers - machine.vector_registers, 0.0)
    few = np.minimum(missing * SPILLED, found.accumulators / machine.store_ports)
    again = np.minimum(missing, found.accumulators) * SPILLED_AGAIN * _terms(problem, form, columns)
    return np.maximum(few, again)


def _masked_cycles(problem: Problem, form: Form, columns: Columns, found: Features) -> Numbers:
    """What masks cost in a step, where the register tiles at the end of the lane axis read lanes under a mask: all
    operands that are neither packed nor private, as lanes without work may touch those."""
    packed = {k for k, _ in form.packed}
    plain = any(o.uses(form.lane) and k not in packed and not o.private for k, o in enumerate(problem.operands))
    if not plain:
        return np.zeros_like(columns.whole[0])
    size = columns.tiles[REGISTER][form.lane]
    extent = columns.family.extents[form.lane]
    masked = np.where(extent % size != 0, 1.0 / np.ceil(extent / size), 0.0)
    if used_once(problem) and form.lane not in problem.reduce:
        # every vector is loaded under a mask made anew, and no multiplication is there to hide it
        return np.where(masked > 0, MASKED_LOAD_CYCLES * found.vector_loads, 0.0)
    return masked * (MASK_PENALTY * found.vector_loads + 2.0 * GATHER_CYCLES * found.gathers)
