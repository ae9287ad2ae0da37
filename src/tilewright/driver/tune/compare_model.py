"""The end of a tuning: the whole model with the tuned kernels, in turns with the untuned one."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tilewright.driver.compile import Progress
from tilewright.driver.diagnostics.random_feeds import random_feeds
from tilewright.driver.tune.draw_sizes import ModelSizes
from tilewright.errors import TilewrightError
from tilewright.measure.engine_comparison import compare_executables
from tilewright.measure.interleaved_blocks import BlockTimes, RunPlan, TimedBlock
from tilewright.runtime import Executable

UNTUNED, TUNED = "untuned", "tuned"

MIN_DIFFERENCE = 0.005
"""The least relative difference of two models that counts; blocks that differ more raise it."""

ROUNDS, MIN_ROUNDS = 5, 3
"""Blocks of each model; at least, whatever the time."""

MAX_COMPARED_SHAPES = 3
"""Shapes at which a model of dynamic sizes is compared."""

MIN_BLOCK_SECONDS, MAX_BLOCK_SECONDS, PAUSE = 0.02, 0.3, 0.02


@dataclass(frozen=True, slots=True)
class ModelComparison:
    """Times of the untuned and the tuned model in turns.

    Attributes:
        sizes: sizes of the model's symbols by name.
        untuned, tuned: seconds of a call.
        others: share of the machine's processors that other processes took meanwhile.
    """

    sizes: Mapping[str, int]
    untuned: BlockTimes
    tuned: BlockTimes
    others: float

    @property
    def speedup(self) -> float:
        """The untuned model's time divided by that of the tuned one."""
        return self.untuned.median / self.tuned.median

    @property
    def noise(self) -> float:
        """The relative difference that counts."""
        return max(MIN_DIFFERENCE, self.untuned.spread, self.tuned.spread)

    @property
    def is_disturbed(self) -> bool:
        """Whether the machine was too busy for `MIN_ROUNDS` of the blocks of each model."""
        return min(self.untuned.undisturbed, self.tuned.undisturbed) < MIN_ROUNDS

    @property
    def is_slower(self) -> bool:
        """Whether the tuned model is slower outside the noise, on a machine that was quiet."""
        return not self.is_disturbed and self.speedup * (1 + self.noise) < 1

    @property
    def is_faster(self) -> bool:
        """Whether it is faster outside the noise."""
        return self.speedup > 1 + self.noise


def compare_models(
    untuned: Executable,
    tuned: Executable,
    feeds: Mapping[str, Any] | None,
    sizes: ModelSizes,
    deadline: float,
    progress: Progress | None = None,
) -> tuple[ModelComparison, ...]:
    """Times two compilations of a model until a deadline, but `MIN_ROUNDS` at one shape in any case.

    Args:
        untuned, tuned: the compilations.
        feeds: the inputs; None for random ones at some of the drawn sizes.
        sizes: drawn sizes of the model's symbols.
        deadline: when it should be over, by `time.monotonic`.
        progress: is told how far it is.

    Raises:
        TilewrightError: the model does not run on these inputs.
    """
    cases = [(dict[str, int](), dict(feeds))] if feeds is not None else _random_cases(untuned, sizes)
    # half of the time is for starting processes, and for blocks that are disturbed
    each = (deadline - time.monotonic()) / 2 / (len(cases) * 2 * ROUNDS) - 3 * PAUSE
    plan = RunPlan(ROUNDS, min(MAX_BLOCK_SECONDS, max(MIN_BLOCK_SECONDS, each)), PAUSE)
    results: list[ModelComparison] = []
    took = 0.0
    for case_sizes, arrays in cases:
        begin = time.monotonic()
        if results and begin + took > deadline:
            break
        untuned.run(arrays)  # what does not fit is an error of this process
        tuned.run(arrays)
        compared = compare_executables(
            {UNTUNED: untuned, TUNED: tuned}, arrays, plan, progress or _ignore, partial(_is_over, deadline)
        )
        took = time.monotonic() - begin
        times = compared.engines
        results.append(ModelComparison(case_sizes, times[UNTUNED], times[TUNED], compared.others))
    return tuple(results)


def _is_over(deadline: float, blocks: Sequence[TimedBlock]) -> bool:
    """Whether there are blocks enough for a result, and no time for more."""
    return len(blocks) >= 2 * MIN_ROUNDS and time.monotonic() >= deadline


def _random_cases(executable: Executable, sizes: ModelSizes) -> list[tuple[dict[str, int], dict[str, Any]]]:
    """Sizes and random inputs at the first drawn shapes that a model takes, at least one."""
    symbols = {s.name for s in executable.manifest.symbols}
    cases: list[tuple[dict[str, int], dict[str, Any]]] = []
    problem: TilewrightError | None = None
    for shape in sizes.shapes[:MAX_COMPARED_SHAPES]:
        named = {name: n for name, n in sizes.named(shape).items() if name in symbols}
        try:
            cases.append((named, random_feeds(executable.manifest, named, (0, 1), 0)))
        except TilewrightError as error:
            problem = error
    if not cases and problem is not None:
        raise problem
    return cases


def _ignore(what: str, done: int, total: int) -> None:
    """Discards progress reports."""
