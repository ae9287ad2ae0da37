"""Features of tile programs, computed from arrays of their sizes: terms of the analytical model, and geometry."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tilewright.cost.breakdown import CostBreakdown, cost_breakdown
from tilewright.cost.candidate_batch import is_packed
from tilewright.cost.footprint import Numbers, moved_bytes
from tilewright.cost.learned.part_features import PART_NAMES, FeatureRows, part_features
from tilewright.machine.model import Machine
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem
from tilewright.tile.program import L1, L2, REGISTER, Sizes, Sketch

MAX_OPERANDS = 4
"""Operands that have features, those with the most bytes per L1 tile first (Ansor has five)."""

OPERAND_NAMES = ("register_bytes", "l1_bytes", "l2_bytes", "bytes", "reuse", "stride", "packed", "constant", "written")
"""Features of an operand."""

GEOMETRY_NAMES = (
    "lane_extent", "lane_register", "lane_l1", "lane_l2", "rows_register", "points_l1", "points_l2", "reduce_register",
    "k_block", "reduction_length", "points", "lane_reduces", "lane_position", "packed_count", "transposed_store",
    "prefetched", "bits", "operations", "l1_share", "l2_share", "intensity_register", "intensity_l1", "intensity_l2",
    "is_remainder",
)  # fmt: skip
"""Features of tile sizes, of the sketch and of the problem."""

NAMES = (
    *PART_NAMES,
    *GEOMETRY_NAMES,
    *(f"operand{k}.{x}" for k in range(MAX_OPERANDS) for x in OPERAND_NAMES),
)
"""Names of all features, in the order of the columns."""


def tile_features(problem: Problem, sketch: Sketch, sizes: Sizes, machine: Machine) -> FeatureRows:
    """The features of candidates of one sketch, at the problem's own sizes.

    Args:
        problem: what is computed.
        sketch: of all candidates.
        sizes: [candidate, level, axis]
        machine: with the cores that they run on.
    """
    breakdown = cost_breakdown(problem, sketch, sizes, machine)
    geometry = geometry_features(problem, sketch, sizes, machine)
    return breakdown_features(breakdown, geometry, least_time(problem, machine))


def breakdown_features(breakdown: CostBreakdown, geometry: Numbers, least: float) -> FeatureRows:
    """The rows of candidates with their terms: the parts that a candidate has.

    Args:
        breakdown: of the candidates.
        geometry: the features of `GEOMETRY_NAMES` and of operands [candidate, feature].
        least: see `part_features`.
    """
    total = breakdown.total
    rows: list[Numbers] = []
    owners: list[npt.NDArray[np.int64]] = []
    shares: list[Numbers] = []
    flag = GEOMETRY_NAMES.index("is_remainder")
    for k, part in enumerate(breakdown.parts):
        present = (np.flatnonzero(part.total > 0) if k else np.arange(len(total))).astype(np.int64)
        own = geometry.copy()
        own[:, flag] = float(k > 0)
        rows.append(np.concatenate([part_features(part, breakdown.packing, total, least), own], axis=1)[present])
        owners.append(present)
        shares.append(part.total[present])
    order = np.argsort(np.concatenate(owners), kind="stable")
    owner, share = np.concatenate(owners)[order], np.concatenate(shares)[order]
    return FeatureRows.of(np.concatenate(rows)[order], owner, share, total)


def least_time(problem: Problem, machine: Machine) -> float:
    """Nanoseconds that no program takes less than: operations at peak rate, and operands once from L2."""
    work = 2.0 * problem.points * problem.operations / machine.gflops(machine.cores, problem.bits)
    operands = {o.buffer: o.bytes for o in (*problem.operands, *problem.results)}
    return max(work, sum(operands.values()) / machine.levels[1].gbs(machine.cores), 1.0)


def geometry_features(problem: Problem, sketch: Sketch, sizes: Sizes, machine: Machine) -> Numbers:
    """The features of `GEOMETRY_NAMES` and of operands [candidate, feature]; sizes as logarithms."""
    boxes = [[np.minimum(sizes[:, level, a], problem.axes[a].extent).astype(np.float64)
              for a in range(len(problem.axes))] for level in (REGISTER, L1, L2)]  # fmt: skip
    lane, spatial, reduce = sketch.lane, list(problem.spatial), list(problem.reduce)
    one = np.ones(len(sizes))
    rows = [a for a in spatial if a != lane]
    line = machine.levels[0].line
    operands = [
        [moved_bytes(o, box, line, is_packed(sketch, k)) for box in boxes] for k, o in enumerate(problem.operands)
    ]
    touched = [sum((x[level] for x in operands), 0.0 * one) for level in range(3)]
    flops = [_product(box, range(len(problem.axes)), one) for box in boxes]
    columns = [
        problem.axes[lane].extent * one, boxes[0][lane], boxes[1][lane], boxes[2][lane],
        _product(boxes[0], rows, one), _product(boxes[1], spatial, one), _product(boxes[2], spatial, one),
        _product(boxes[0], reduce, one), _product(boxes[1], reduce, one), problem.reduction_length * one,
        float(problem.points) * one,
    ]  # fmt: skip
    position = sketch.order.index(lane) if lane in sketch.order else -1
    flags = [
        float(problem.axes[lane].is_reduction), float(position - len(sketch.order)), float(len(sketch.packed)),
        float(sketch.transposed_store), float(len(sketch.prefetched_operands)), float(problem.bits),
        float(problem.operations),
    ]  # fmt: skip
    shares = [touched[1] / machine.levels[0].share, touched[2] / machine.levels[min(1, len(machine.levels) - 1)].share]
    intensities = [f / np.maximum(t, 1.0) for f, t in zip(flops, touched, strict=True)]
    features = [np.log2(1.0 + x) for x in columns] + [x * one for x in flags] + shares + intensities + [0.0 * one]
    of_operands = _operand_features(problem, sketch, operands, flops, one)
    return np.concatenate([np.stack(features, axis=1), of_operands], axis=1)


def _operand_features(
    problem: Problem, sketch: Sketch, touched: list[list[Numbers]], flops: list[Numbers], one: Numbers
) -> Numbers:
    """The features of operands, of each candidate the one with the most bytes per L1 tile first."""
    blocks: list[Numbers] = []
    for k, o in enumerate(problem.operands):
        whole = float(o.bytes)
        columns = [np.log2(1.0 + x) for x in touched[k]]
        reuse = flops[1] * o.element_bytes / np.maximum(1.0, touched[k][1])
        columns += [np.log2(1.0 + whole) * one, np.log2(1.0 + reuse)]
        flags = float(is_packed(sketch, k)), float(o.constant), float(o.written)
        columns += [x * one for x in (_lane_stride(o, sketch), *flags)]
        blocks.append(np.stack(columns, axis=1))
    count = len(OPERAND_NAMES)
    result = np.zeros((len(one), MAX_OPERANDS * count))
    order = np.argsort(-np.stack([t[1] for t in touched], axis=1), axis=1, kind="stable")[:, :MAX_OPERANDS]
    every = np.stack(blocks, axis=1)
    for n in range(order.shape[1]):
        result[:, n * count : (n + 1) * count] = every[np.arange(len(one)), order[:, n]]
    return result


def _lane_stride(o: Operand, sketch: Sketch) -> float:
    return float(np.log2(1.0 + abs(o.strides[sketch.lane])))


def _product(box: list[Numbers], axes: Iterable[int], one: Numbers) -> Numbers:
    result = one
    for a in axes:
        result = result * box[a]
    return result
