"""Verdicts on measurements: whether a program wins outside the noise, and the time of one that serves several sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, log

from tilewright.optimize.measurer import Candidate, Failure, Measurement, Timing

MIN_GAIN = 0.01
"""The least part of its time by which a program must beat the incumbent."""

NOISE_FACTOR = 1.0
"""The gain is at least so many times the distance between the quartiles of the blocks' times."""

MAX_TRUSTED_SPREAD = 0.25
"""Blocks that differ more than this say nothing about gains."""


def required_gain(timing: Timing) -> float:
    """The part of its time by which a program with this timing must beat the incumbent."""
    return max(MIN_GAIN, NOISE_FACTOR * timing.spread)


def ratio(timing: Timing) -> float | None:
    """Its time as a multiple of the incumbent's in turns with it; None without an incumbent."""
    return None if not timing.incumbent else timing.nanoseconds / timing.incumbent


def seems_to_win(timing: Timing) -> bool:
    """Whether a program beats the incumbent outside the noise, if the measurement can be trusted."""
    value = ratio(timing)
    return value is not None and timing.spread <= MAX_TRUSTED_SPREAD and value * (1 + required_gain(timing)) < 1


def wins(timing: Timing) -> bool:
    """Whether a program beats the incumbent outside the noise, by a measurement on a machine that was not too busy."""
    return timing.is_reliable and seems_to_win(timing)


def loses(timing: Timing) -> bool:
    """Whether a program is slower than the incumbent outside the noise."""
    value = ratio(timing)
    return value is not None and value > 1 + required_gain(timing)


def combined_measurement(
    candidate: Candidate, results: Sequence[Timing | Failure | None], baseline: Sequence[float], shares: Sequence[float]
) -> Measurement:
    """One measurement of a candidate that was timed at several sizes.

    Its time is the geometric mean over the sizes, so that a large one does not hide the others. Where it was not timed
    it counts as many times the baseline as at the other sizes.

    Args:
        candidate: the program.
        results: per size; None where it was not measured. At least one is not None.
        baseline: nanoseconds of the constructed programs per size.
        shares: weights of the sizes, which add up to 1.
    """
    failure = next((r for r in results if isinstance(r, Failure)), None)
    if failure is not None:
        return Measurement(candidate, failure)
    timings: Mapping[int, Timing] = {k: r for k, r in enumerate(results) if isinstance(r, Timing)}
    if len(results) == 1:
        return Measurement(candidate, timings[0])
    weight = sum(shares[k] for k in timings)
    factor = exp(sum(shares[k] * log(t.nanoseconds / baseline[k]) for k, t in timings.items()) / weight)
    reference = exp(sum(s * log(b) for s, b in zip(shares, baseline, strict=True)))
    first = timings[min(timings)]
    worst = max(t.spread for t in timings.values())
    scale = factor * reference / first.nanoseconds
    return Measurement(
        candidate,
        replace(
            first, nanoseconds=factor * reference, spread=worst, fastest=first.fastest * scale, incumbent=reference
        ),
    )
