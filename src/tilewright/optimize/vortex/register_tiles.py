"""Register tiles that an instruction set has room for, and their times: level 0 of the library.

A tile has m rows of v vectors and adds up u terms per step of its loop. Its accumulators, a row of vectors and the
broadcast value need registers; and there are as many accumulators as multiply-adds are in flight, or the tile waits
for its own additions. Tiles of fewer than `MIN_ROWS` rows wait anyway and are kept for matrices of few rows.
"""

from dataclasses import dataclass
from statistics import median

import numpy as np

from tilewright.cost.footprint import Numbers
from tilewright.machine.model import Machine
from tilewright.optimize.construct.search_space import MAX_VECTORS, UNROLL_FACTORS
from tilewright.optimize.construct.state_costs import MAX_UNROLLED_OPS
from tilewright.optimize.construct.tile_lattice import Indices

MIN_ROWS = 4
"""Rows from which on a tile must have enough accumulators; of fewer rows all widths are kept."""

MAX_REGISTER_ROWS = 32
"""Rows of the largest tile that any instruction set has registers for."""

BROADCAST_BITS = 512
"""Width of vectors from which on a multiply-add reads a broadcast value from memory, without a register for it."""


def filter_by_isa(machine: Machine) -> Indices:
    """The register tiles (rows, vectors, unroll) [tile, 3] of a machine, ascending."""
    in_flight = machine.fma_pipes * machine.fma_cycles
    tiles: list[tuple[int, int, int]] = []
    for vectors in range(1, MAX_VECTORS + 1):
        for rows in range(1, MAX_REGISTER_ROWS + 1):
            sums = rows * vectors
            # a row of vectors; or, of a single one, the operand of every multiply-add
            registers = sums + vectors + (0 if machine.vector_bits >= BROADCAST_BITS else 1)
            if registers > machine.vector_registers or (rows >= MIN_ROWS and sums < in_flight):
                continue
            tiles += [(rows, vectors, u) for u in UNROLL_FACTORS if sums * u <= MAX_UNROLLED_OPS]
    return np.array(sorted(tiles), np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class RegisterTileTimes:
    """Times of register tiles.

    Attributes:
        cycles: cycles per term [rows - 1, vectors - 1, unroll], the unroll factors those of `UNROLL_FACTORS`.
        measured: number of tiles whose times were measured on the machine; the others are computed.
    """

    cycles: Numbers
    measured: int

    @staticmethod
    def computed(machine: Machine) -> "RegisterTileTimes":
        """Times that follow from the machine's ports and latencies."""
        rows, vectors, unroll = np.meshgrid(
            np.arange(1.0, MAX_REGISTER_ROWS + 1),
            np.arange(1.0, MAX_VECTORS + 1),
            np.array(UNROLL_FACTORS),
            indexing="ij",
        )
        return RegisterTileTimes(_computed_cycles(rows, vectors, unroll, machine), 0)

    @staticmethod
    def of(machine: Machine, element_bits: int) -> "RegisterTileTimes":
        """Measured times where the machine's description has them, others scaled alike; else computed ones.

        Args:
            machine: the machine.
            element_bits: width of the elements.
        """
        computed = RegisterTileTimes.computed(machine).cycles
        cycles, ratios = computed.copy(), list[float]()
        positions: list[tuple[int, int, int]] = []
        for x in machine.register_tiles:
            fits = x.rows <= MAX_REGISTER_ROWS and x.vectors <= MAX_VECTORS and x.unroll in UNROLL_FACTORS
            if fits and (x.vector_bits, x.element_bits) == (machine.vector_bits, element_bits):
                place = x.rows - 1, x.vectors - 1, UNROLL_FACTORS.index(x.unroll)
                ratios.append(x.cycles / float(computed[place]))
                cycles[place] = x.cycles
                positions.append(place)
        if positions:
            is_measured = np.zeros(cycles.shape, np.bool_)
            is_measured[tuple(np.array(positions).T)] = True
            cycles = np.where(is_measured, cycles, computed * median(ratios))
        return RegisterTileTimes(cycles, len(positions))

    def at(self, rows: Indices | Numbers, vectors: Indices | Numbers, unroll: Indices | Numbers) -> Numbers:
        """Cycles per term of tiles; those beyond the table in parts of the largest height.

        Args:
            rows, vectors, unroll: of each tile.
        """
        parts = np.ceil(rows / MAX_REGISTER_ROWS)
        height = np.clip(np.ceil(rows / parts), 1, MAX_REGISTER_ROWS).astype(np.int64) - 1
        width = np.clip(vectors, 1, MAX_VECTORS).astype(np.int64) - 1
        steps = np.searchsorted(np.array(UNROLL_FACTORS), unroll, side="right") - 1
        return self.cycles[height, width, np.clip(steps, 0, len(UNROLL_FACTORS) - 1)] * parts


def _computed_cycles(rows: Numbers, vectors: Numbers, unroll: Numbers, machine: Machine) -> Numbers:
    """Cycles per term: the busiest of multiply-add pipes, load ports and the front end, or the wait for the additions
    before; then what loop and missing registers add."""
    cost = machine.cost
    sums, loads = rows * vectors, rows + vectors
    multiply = sums / machine.fma_pipes + cost.load_fma_contention * loads
    load = (rows * cost.broadcast_load_factor + vectors) * cost.load_cycles / machine.load_ports
    issue = (sums + loads) / cost.issue_width
    without_register = np.maximum(0.0, sums + vectors + 1 - machine.vector_registers)
    bound = np.maximum(np.maximum(multiply, load), np.maximum(issue, float(machine.fma_cycles)))
    return bound + cost.step_cycles / unroll + cost.spill_cycles * without_register
