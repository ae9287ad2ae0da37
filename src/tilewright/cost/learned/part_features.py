"""Features of programs as rows of numbers, one row per part of a program: whole tiles, a remainder, a stage.

A learned model predicts a number per row; a program's score is their mean, weighed by the parts' shares of the
predicted time, so programs of any number of parts are compared by one model. (In Ansor, OSDI 2020, section 5.2, a row
is an innermost statement, and the score is the sum of the rows: more statements then mean a better score until it has
been learned that they do not.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewright.cost.breakdown import COUNTED_FEATURES, CostPart
from tilewright.cost.footprint import Numbers

CORE_TERMS = (
    "execution", "load_store_ports", "add_latency", "issue", "spills", "masks", "step_loop", "loop_entry",
    "stream_starts", "k_blocks", "results", "tlb_misses", "tile_entry", "guards", "scatter_stalls", "split_misses",
    "store_starts", "imbalance", "multiply_adds", "load_contention", "shuffles", "inserts", "loads", "stores",
    "code_size", "row_block", "store_forward_stalls", "split_stores",
)  # fmt: skip
"""Nanoseconds that the resources of a core take, relative to the least time of the problem."""

LEVEL_CAUSES = ("traffic", "conflict_misses", "ramp_up", "untracked_streams", "shared_data", "imbalance")
"""Causes of the nanoseconds that a memory level takes, relative as well."""

LEVELS = 3
"""Memory levels that have features of their own, from L2 outwards."""

PART_NAMES = (
    *(f"count.{x}" for x in COUNTED_FEATURES),
    *(f"core.{x}" for x in CORE_TERMS),
    *(f"level{k}.{x}" for k in range(LEVELS) for x in LEVEL_CAUSES),
    "threads", "fork_join", "slowdown", "part", "part_share", "packing", "program", "log_program", "log_least",
)  # fmt: skip
"""Names of the features that come from the breakdown of a part."""


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """Features of a batch of programs.

    Attributes:
        rows: [row, feature]
        programs: the program that each row belongs to, rising [row].
        weights: of the rows, 1 together for each program [row].
        predicted: nanoseconds of each program by the analytical model [program].
    """

    rows: npt.NDArray[np.float32]
    programs: npt.NDArray[np.int64]
    weights: Numbers
    predicted: Numbers

    @property
    def count(self) -> int:
        """Number of programs."""
        return len(self.predicted)

    @staticmethod
    def of(rows: Numbers, programs: npt.NDArray[np.int64], shares: Numbers, predicted: Numbers) -> "FeatureRows":
        """Features with weights in proportion to the nanoseconds of each row."""
        positive = np.maximum(shares, 1e-9)
        totals: Numbers = np.zeros(len(predicted))
        np.add.at(totals, programs, positive)
        return FeatureRows(rows.astype(np.float32), programs, positive / totals[programs], predicted)

    def mean(self, values: Numbers) -> Numbers:
        """The weighed mean of numbers per row, for each program."""
        means: Numbers = np.zeros(self.count)
        np.add.at(means, self.programs, values * self.weights)
        return means

    @staticmethod
    def concat(batches: "Sequence[FeatureRows]") -> "FeatureRows":
        """Several batches as one, in their order; at least one."""
        starts = np.cumsum([0, *(b.count for b in batches)])
        return FeatureRows(
            np.concatenate([b.rows for b in batches]),
            np.concatenate([b.programs + start for b, start in zip(batches, starts, strict=False)]),
            np.concatenate([b.weights for b in batches]),
            np.concatenate([b.predicted for b in batches]),
        )

    def take(self, order: Sequence[int]) -> "FeatureRows":
        """The programs of some positions, in that order."""
        first = np.searchsorted(self.programs, np.arange(self.count + 1))
        picked = [np.arange(first[k], first[k + 1]) for k in order]
        owners = np.repeat(np.arange(len(order)), [len(p) for p in picked])
        rows = np.concatenate(picked) if picked else np.zeros(0, np.int64)
        return FeatureRows(self.rows[rows], owners, self.weights[rows], self.predicted[list(order)])


def part_features(part: CostPart, packing: Numbers, total: Numbers, least: float) -> Numbers:
    """The features of a part of programs [candidate, feature], in the order of `PART_NAMES`.

    Args:
        part: its terms.
        packing: nanoseconds of packing operands.
        total: nanoseconds of the programs.
        least: nanoseconds that no program of the problem takes less than; times are given in this unit, so that
            operators of all sizes share one model.
    """
    zero = np.zeros_like(total)
    core: Mapping[str, Numbers] = {**part.overlapping, **part.exposed, **part.contained}
    columns = [np.log2(1.0 + np.abs(part.counts.get(x, zero))) for x in COUNTED_FEATURES]
    columns += [core.get(x, zero) / least for x in CORE_TERMS]
    for k in range(LEVELS):
        times = part.levels[k].time if k < len(part.levels) else {}
        columns += [times.get(x, zero) / least for x in LEVEL_CAUSES]
    columns += [
        part.threads, part.fork_join / least, part.slowdown, part.total / least,
        part.total / np.maximum(total, 1e-9), packing / least, total / least, np.log2(1.0 + total),
        np.full_like(total, np.log2(1.0 + least)),
    ]  # fmt: skip
    return np.stack([x + zero for x in columns], axis=1)
