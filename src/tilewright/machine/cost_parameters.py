"""Parameters of the cost model that clocks, ports, latencies and bandwidths of a machine do not state.

They belong to a machine's description like these (`Machine.cost`): a file may state some of them in its object `cost`,
and the others have the defaults here, which were fitted on two Intel Xeons with AVX-512, a few on an AMD EPYC of Zen 3.
`docs/cost-model.md` has the measurements behind each. Limits of the code generator and of the search are no properties
of a machine and stay beside the formulas that use them.

Every field has a unit, bounds that a description is checked against, and what fixes its value (`parameter_fields`).
Those fixed by `CALIBRATION` are fitted by `tilewright doctor --calibrate`; where its measurements do not determine one,
the value from before stays.
"""

from dataclasses import dataclass, field, fields
from typing import Any, cast

CALIBRATION = "doctor --calibrate"
"""Fitted by `tilewright doctor --calibrate` (`measure/fit_parameters.py`)."""

MICROKERNELS = "benchmarks.microkernels"
"""Fixed by the loops in assembly of that benchmark."""

FUSED_CHAINS = "benchmarks.paper_mcfuser"
"""Fixed by the measured times of fused chains of that benchmark."""

MANUAL = "vendor's manual"
"""Stated by the processor's optimization manual."""

NOT_MEASURED = "chosen"
"""Chosen, not measured."""


def ranking(kinds: str) -> str:
    """Fixed by how well `python -m benchmarks.cost_model` ranks programs of these kinds."""
    return f"ranking of {kinds}"


@dataclass(frozen=True, slots=True)
class ParameterField:
    """What is known of one parameter.

    Attributes:
        name: of the field.
        unit: "cycles", "bytes", "ns", "fraction" (of the named whole), "factor", or what is counted.
        default: the value where a description states none.
        least, most: bounds of any machine, both allowed.
        fixed_by: the measurement or source that fixes its value.
        is_integer: whether it counts something that has no parts.
    """

    name: str
    unit: str
    default: float
    least: float
    most: float
    fixed_by: str
    is_integer: bool


def _cost_field(default: float, unit: str, least: float, most: float, fixed_by: str) -> Any:
    return field(default=default, metadata={"unit": unit, "least": least, "most": most, "fixed_by": fixed_by})


@dataclass(frozen=True, slots=True, kw_only=True)
class CostParameters:
    """Parameters of one machine, by the part of the model that uses them."""

    # the core: instructions of a register tile (cost/instructions.py)

    issue_width: float = _cost_field(5.0, "instructions per cycle", 1.0, 64.0, MANUAL)
    """Instructions issued per cycle."""
    half_width_rate: int = _cost_field(1, "factor", 1, 2, MANUAL)
    """Multiply-adds and loads of vectors of half a register's width, or less, that execute in the time of one of the
    full width: 2 where instructions on whole registers pass a datapath of half their width twice."""
    reorder_window: float = _cost_field(256.0, "instructions", 1.0, 65536.0, MANUAL)
    """Instructions between the oldest one that waits and the youngest one that executes."""
    load_cycles: float = _cost_field(1.25, "port cycles per load", 0.25, 16.0, MICROKERNELS)
    """A load on its port; 1 if the port were always free."""
    broadcast_load_factor: float = _cost_field(1.0, "factor", 0.05, 4.0, MICROKERNELS)
    """Port cycles of a load of one element, broadcast to all lanes, over `load_cycles`: less than 1 where a port passes
    whole vectors in parts."""
    load_fma_contention: float = _cost_field(0.15, "cycles per load", 0.0, 4.0, CALIBRATION)
    """A load next to multiply-adds that saturate their pipes: cores lower their clock as more units work."""
    split_miss_cycles: float = _cost_field(0.8, "cycles per load", 0.0, 100.0, ranking("products in unaligned rows"))
    """A vector load that touches two cache lines of which L1 has neither, beyond the second access: it is repeated once
    both have arrived, and nothing that follows hides that."""
    step_cycles: float = _cost_field(0.75, "cycles per step", 0.0, 100.0, ranking("products and windows"))
    """Overhead of the loop around a reduction step."""
    loop_cycles: float = _cost_field(4.0, "cycles per loop", 0.0, 1000.0, ranking("products and windows"))
    """Entering and leaving a loop over steps."""
    tile_cycles: float = _cost_field(6.0, "cycles per register tile", 0.0, 1000.0, ranking("products and windows"))
    """Entering and leaving a register tile, beyond its loads and stores: a full pipeline, a mispredicted branch."""
    unrolled_tile_cycles: float = _cost_field(1.5, "cycles per register tile", 0.0, 1000.0, ranking("windows"))
    """Counters and addresses around a fully unrolled register tile."""
    new_stream_l2_fraction: float = _cost_field(
        0.175, "fraction of the L2 latency", 0.0, 1.0, ranking("products with short reductions")
    )
    """Exposed for each stream that a register tile starts."""
    k_block_cycles: float = _cost_field(
        3.6, "cycles per vector", 0.0, 1000.0, ranking("products with long reductions")
    )
    """Partial sums of a K-blocked reduction: zeroed first, moved to the results at the end."""
    add_latency_fraction: float = _cost_field(0.6, "fraction of the latency of a multiply-add", 0.0, 2.0, MANUAL)
    """Latency of an addition."""
    spill_cycles: float = _cost_field(4.0, "cycles per vector and step", 0.0, 1000.0, ranking("large tiles"))
    """A vector without a register."""
    respill_cycles: float = _cost_field(1.6, "cycles per vector and addition", 0.0, 1000.0, ranking("large tiles"))
    """A vector without a register, for each addition of a step to every accumulator: of many spilled vectors all are
    stored and loaded for each of them (1.4 to 1.8 for tiles of 18 to 42 accumulators in 16 registers, with 2 and 4
    additions in a step)."""

    # the core: assembling and taking apart vectors, masks

    scatter_cycles: float = _cost_field(1.5, "cycles per element", 0.0, 100.0, CALIBRATION)
    """Storing one element of a vector of results across the vector's direction."""
    shuffle_cycles: float = _cost_field(2.0, "cycles per vector", 0.0, 100.0, ranking("windows with strides"))
    """Assembling one vector from every second element of loaded vectors."""
    transpose_shuffle_cycles: float = _cost_field(1.0, "cycles per shuffle", 0.0, 100.0, ranking("transpositions"))
    """One shuffle of a transposition in registers; a vector takes one for each doubling of its lanes."""
    stack_tile_cycles: float = _cost_field(2.0, "cycles per vector", 0.0, 100.0, ranking("convolutions"))
    """Storing a vector of a register tile on the stack, and reading it there."""
    insert_cycles: float = _cost_field(1.0, "cycles per element", 0.0, 100.0, CALIBRATION)
    """Moving one element into or out of a vector: the shuffle port takes one per cycle."""
    narrow_insert_factor: float = _cost_field(2.0, "factor", 1.0, 100.0, ranking("transpositions of bytes"))
    """Cost of an insertion of narrow elements into wide vectors (`instructions.NARROW_BITS`)."""
    guard_cycles: float = _cost_field(0.5, "cycles per vector", 0.0, 100.0, ranking("partial tiles"))
    """Row conditions of a partial tile, per vector of results."""
    mask_penalty: float = _cost_field(0.25, "fraction of a step", 0.0, 10.0, ranking("partial tiles"))
    """Masked loads of lanes in every step."""
    mask_cycles: float = _cost_field(1.0, "cycles per vector", 0.0, 100.0, ranking("partial tiles"))
    """Computing and applying the mask of a vector of elementwise work."""
    masked_load_cycles: float = _cost_field(0.5, "cycles per load", 0.0, 100.0, ranking("partial tiles"))
    """Loading a vector, added as it is, under the mask of a partial tile."""
    min_mask_register_bits: int = _cost_field(512, "bits of a vector", 64, 1 << 16, MANUAL)
    """Width of vectors from which on a processor has mask registers."""
    masked_store_cycles: float = _cost_field(12.0, "cycles per store", 0.0, 1000.0, ranking("windows on AVX2"))
    """A masked store without mask registers, in the last tiles only: the others are peeled off. Masks are constants
    there and leave one partial vector per row."""

    # TLB and caches (cost/instructions.py, cost/caches.py, cost/traffic.py, cost/conflict_misses.py)

    tlb_miss_cycles: float = _cost_field(3.0, "cycles per page", 0.0, 1000.0, CALIBRATION)
    """Exposed cycles of a lookup in the second-level TLB."""
    overlapped_tlb_miss_cycles: float = _cost_field(1.0, "cycles per page", 0.0, 1000.0, ranking("transpositions"))
    """The same where tiles do not wait for each other, so that several lookups overlap."""
    usable_cache_fraction: float = _cost_field(0.75, "fraction of a cache", 0.01, 1.0, ranking("products beyond L2"))
    """Share of a cache that a program can rely on; the rest is for data that streams through."""
    l1_intermediate_fraction: float = _cost_field(0.5, "fraction of L1", 0.0, 1.0, ranking("windows"))
    """Share of L1 that holds what a stage touches of a block of rows, as inputs and outputs stream through it. Blocks
    of planes that take two thirds of it, nine tenths, and a quarter more than all of it take 1.1, 1.25 and 1.4 times as
    long per plane as blocks that take a sixth."""
    shared_line_factor: float = _cost_field(2.0, "factor", 1.0, 100.0, ranking("products on all threads"))
    """Weight of read-shared lines in the last private cache beyond L1: a miss is served by another core's cache, which
    is slower than the shared cache."""
    cache_to_cache_ns: float = _cost_field(2.5, "ns per line", 0.0, 1000.0, ranking("convolutions on all threads"))
    """What a line costs the core that reads it where another core has just written it, and takes it back for the next
    call: with two cores of an Intel Xeon, 5 to 12 ns and 3 to 9 ns for 16 to 300 KB, 2.4 and 2.6 ns for more."""
    max_conflict_penalty: float = _cost_field(5.0, "factor", 0.0, 100.0, ranking("transpositions"))
    """Upper bound of the slowdown of lines that are read into overfull sets. Transposing 1024 x 1024 elements takes
    0.8 ns each where tiles read 16 rows of one set of 8 ways, 2.0 ns with 32 rows, 3.5 ns with 64 and 128; 1040 x 1024
    elements, whose rows are spread over all sets, take 0.3 ns with any (one core of an EPYC of Zen 3)."""
    aliased_row_miss_factor: float = _cost_field(13.0, "factor", 0.0, 1000.0, ranking("products"))
    """Share of the lines of a register tile's rows that are loaded again in every step, over the cube of the share that
    has no room in their set of L1. Rows of 4 KiB and 32 columns take 1.00, 1.02, 1.12, 1.2 and 1.3 times as long in
    tiles of 8, 10, 12, 13 and 14 rows as rows of 4 KiB and a line, 16 rows and 16 columns 2.2 times (one core of a Zen
    4, whose L1 has 8 ways)."""
    store_buffer_entries: int = _cost_field(64, "stores", 0, 1 << 16, MANUAL)
    """Stores that wait for L1."""
    store_forward_stall_cycles: float = _cost_field(19.0, "cycles per store", 0.0, 1000.0, ranking("row-wise programs"))
    """Waiting for one store to leave the store buffer."""
    split_store_l3_fraction: float = _cost_field(0.25, "fraction of the L3 latency", 0.0, 10.0, ranking("windows"))
    """What a store to a part of a row waits. Windows of 144 planes of 56 x 56 on one core take 290 us in tiles of one
    row of 16 lanes, 390, 420 and 470 us in tiles of 2, 3 and 5."""

    # hardware prefetcher (cost/hw_prefetch.py, cost/analytical.py, cost/reduction_kind.py, cost/features.py)

    max_streams: float = _cost_field(12.0, "streams", 1.0, 65536.0, ranking("convolutions and sums"))
    """Read streams that the prefetcher tracks."""
    stream_penalty: float = _cost_field(0.3, "factor", 0.0, 100.0, ranking("convolutions and sums"))
    """Relative cost of twice `max_streams`, for traffic from beyond L2."""
    max_write_streams: float = _cost_field(16.0, "streams", 1.0, 65536.0, ranking("sums and convolutions"))
    """Streams of stores that the prefetcher tracks."""
    max_prefetch_pages: float = _cost_field(32.0, "pages", 1.0, 65536.0, MANUAL)
    """Pages in which the prefetcher tracks one read stream each (L2 streamer: Intel's optimization manual, section on
    data prefetching). A matrix of rows a page and more apart that is read in columns of one line is four times as slow
    in blocks of 64 rows as in blocks of 32."""
    unprefetched_penalty: float = _cost_field(1.0, "factor", 0.0, 100.0, ranking("transpositions"))
    """Relative cost of loads from more than `max_prefetch_pages` pages that no instruction waits for; most of it
    overlaps with instructions and stores. Transposes in blocks of 64 rows a page apart take 1.2 times as long as in
    blocks of 32."""
    stream_ramp_bytes: float = _cost_field(170.0, "bytes per stream", 0.0, 1e6, CALIBRATION)
    """Ramp-up cost of a stream, where many short ones start at once: bytes that could be loaded from beyond L2 in the
    time of its first line."""
    page_ramp_bytes: float = _cost_field(256.0, "bytes per page", 0.0, 1e6, CALIBRATION)
    """Ramp-up cost of a page: bytes of it that could be loaded in the time of the first one. Prefetchers do not cross
    page boundaries."""
    prefetched_ramp_fraction: float = _cost_field(0.25, "fraction of the ramp-up", 0.0, 1.0, ranking("few rows"))
    """What is left of the ramp-up where software prefetches the rows of an operand that is read where it is."""
    row_start_cycles: float = _cost_field(35.0, "cycles per piece of a row", 0.0, 10000.0, ranking("few rows"))
    """Exposed cycles at the start of a piece of a row that comes from memory."""
    contended_cache_bytes: int = _cost_field(10 << 20, "bytes", 1, 1 << 40, ranking("few rows"))
    """The last cache's bytes that a program finds for itself on a host that others use."""
    single_stream_penalty: float = _cost_field(1.3, "factor", 1.0, 100.0, ranking("products of one row"))
    """Slowdown of memory where single rows read one panel instead of several interleaved ones, which keep more lines in
    flight. 1 x 4096 x 4096 takes 2.4 ms with panels of 56 or 64 columns on two cores with AVX2 and 1.7 ms with four or
    more interleaved panels; 6.6 and 5.4 ms on one core with AVX-512."""
    interleaved_store_penalty: float = _cost_field(0.05, "factor", 0.0, 100.0, ranking("copies with borders"))
    """Relative cost of interleaved stores to many unaligned rows where nothing is computed; half of it for two rows.
    Copies of 36 x 48 x 192 elements with a border of zeros take 1.15 times as long in tiles of two rows as row by row,
    1.25 times in tiles of four."""
    split_store_ramp_bytes: float = _cost_field(
        250.0, "bytes per page", 0.0, 1e6, ranking("transpositions and windows")
    )
    """Bytes that could be stored while the first store to a page waits for two lines. A transpose of 4001 x 7770
    elements, which no cache holds, takes twice as long in tiles of seven rows as row by row, one of 4000 x 7770 1.2
    times."""
    alternating_store_penalty: float = _cost_field(0.0, "factor", 0.0, 100.0, ranking("products of few terms"))
    """Relative cost of stores beyond L2 in blocks of columns by register tiles of one row, half of it in tiles of two
    rows, and so on; nothing where rows are stored one after the other, each as a whole. Measured on Zen 4 only."""
    same_page_store_penalty: float = _cost_field(0.0, "factor", 0.0, 100.0, ranking("products of few terms"))
    """Relative cost of such stores for every further row in the same page. Measured on Zen 4 only."""
    store_start_cycles: float = _cost_field(
        0.0, "cycles per run of memory", 0.0, 10000.0, ranking("products of few terms")
    )
    """Exposed cycles of the first store to a run of a result that is in memory. Measured on Zen 4 only."""
    refetch_factor: float = _cost_field(2.0, "loads per line", 0.0, 100.0, ranking("sums over columns"))
    """How often a prefetched line is loaded from L2 again that was evicted before its use, as rows alias to few sets of
    L1. 1024 x 1024 elements are summed along columns in 62, 82, 136 and 151 us in blocks of 8, 16, 32 and 64 rows,
    1024 x 1040 in 58 to 73 us in any (one core of an EPYC of Zen 3)."""
    early_prefetch_lines: float = _cost_field(2.0, "lines", 0.0, 1000.0, ranking("sums over columns"))
    """Lines at the start of a segment that are prefetched before it is read."""
    min_stream_distance_bytes: int = _cost_field(1024, "bytes", 1, 1 << 20, ranking("sums over columns"))
    """Distance from which on two rows are separate streams."""
    min_long_reduction: int = _cost_field(32, "terms", 1, 1 << 20, ranking("windows"))
    """Terms of a reduction over several axes from which on a program waits for its operands: the next results are too
    far away for out-of-order execution to start them meanwhile."""
    min_long_axis: int = _cost_field(32, "terms", 1, 1 << 20, ranking("products with short reductions"))
    """The same where one axis alone is reduced, as in products and in sums of rows or columns; windows in a plane
    reduce several and are unrolled. 16 on Zen 4."""

    # whole programs: overlap, packing, threads, calls (cost/time.py, cost/analytical.py, cost/parallel_time.py)

    exposed_fraction: float = _cost_field(0.25, "fraction of a resource's time", 0.0, 1.0, ranking("all kinds"))
    """Share of the time of all but the slowest resource that is not hidden behind it."""
    copy_cycles: float = _cost_field(0.4, "cycles per element", 0.0, 100.0, CALIBRATION)
    """Packing one element of an operand along its contiguous axis."""
    false_sharing_latencies: float = _cost_field(
        1.0, "latencies of the shared cache", 0.0, 100.0, ranking("products of unaligned rows, on all threads")
    )
    """A store to a line that another core has written last."""
    masked_copy_cycles: float = _cost_field(1.0, "cycles per element", 0.0, 100.0, ranking("dynamic convolutions"))
    """The same where the axis has a symbolic size: every vector is guarded."""
    transpose_cycles: float = _cost_field(6.0, "cycles per element", 0.0, 100.0, CALIBRATION)
    """Packing one element of an operand along an axis in which it is not contiguous."""
    row_block_cycles: float = _cost_field(6.0, "cycles per stage and block", 0.0, 1000.0, ranking("row-wise programs"))
    """Starting a stage for another block of rows: short loops whose exits are mispredicted now and then."""
    core_speed_variation: float = _cost_field(0.1, "fraction of a time", 0.0, 1.0, NOT_MEASURED)
    """Relative difference in speed between cores for a while: neighbours on a shared machine, clocks, interrupts. It
    bounds the wait for the last task, which threads without work can't steal."""
    call_ns: float = _cost_field(1000.0, "ns", 1e-3, 1e9, NOT_MEASURED)
    """What a kernel's call costs whatever it computes; added before means over shapes, because programs hardly differ
    at shapes of a few elements."""
    fork_cost_margin: float = _cost_field(2.0, "factor", 0.0, 1000.0, NOT_MEASURED)
    """Safety factor on the fork/join cost, at run time: `sync_us` is measured with spinning workers; waking sleeping
    ones takes longer."""
    vector_instructions_per_cycle: float = _cost_field(2.0, "instructions per cycle", 0.01, 64.0, NOT_MEASURED)
    """Vector instructions issued per cycle, where some are loads and stores, in the estimate at run time."""

    # fused chains (optimize/chains/optimizer.py)

    chain_time_ratio: float = _cost_field(0.92, "factor", 0.1, 10.0, FUSED_CHAINS)
    """Time of the tree of a fused chain relative to what the model of trees predicts for it."""

    convolution_chain_time_ratio: float = _cost_field(0.68, "factor", 0.1, 10.0, FUSED_CHAINS)
    """The same for chains of convolutions whose vectors run along channels."""

    depthwise_chain_time_ratio: float = _cost_field(0.87, "factor", 0.1, 10.0, FUSED_CHAINS)
    """The same for those that begin with a depthwise convolution, whose vectors run along columns."""


DEFAULT_COST = CostParameters()
"""The parameters of a machine that states none."""


def parameter_fields() -> tuple[ParameterField, ...]:
    """All parameters, in order."""
    return tuple(
        ParameterField(
            f.name,
            f.metadata["unit"],
            cast(float, f.default),
            f.metadata["least"],
            f.metadata["most"],
            f.metadata["fixed_by"],
            f.type is int,
        )
        for f in fields(CostParameters)
    )
