"""Real calls of an instrumented model: how long each kernel and each fallback step took, and what threads did.

Calls follow one another as a program would make them, so caches, clocks and threads are in the state that they have
there. What is told is the mean over the quarter of the calls that were fastest: sums over kernels then fit the call,
and calls that something disturbed do not count.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.codegen import timestamps
from tilewright.codegen.segment import Segment, TimestampBuffer
from tilewright.measure.timestamp_counter import MIN_RATE_SECONDS, TimestampCounter, timestamp_counter
from tilewright.measure.timing import time_calls
from tilewright.runtime import Artifact, Executable
from tilewright.runtime.fallback_call import FallbackCall
from tilewright.runtime.manifest import FallbackStep

MIN_CALLS, MAX_CALLS = 8, 20_000
"""Calls of a profile."""

WARMUP_CALLS = 3
"""Calls before those that count."""

BLOCK_CALLS = 8
"""Calls of a block when two programs take turns."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """What one thread did during a kernel, in microseconds.

    Attributes:
        start: from the start of the kernel's parallel regions to the thread's first work in them.
        busy: its work.
        wait: from the end of its work to the end of the regions.
        first, last: when it began and ended, from the beginning of the call; 0 where it took no part.
    """

    start: float
    busy: float
    wait: float
    first: float
    last: float


@dataclass(frozen=True, slots=True)
class Span:
    """One kernel, copy or fallback step within a call, in microseconds.

    Attributes:
        begin: from the beginning of the call.
        us: how long it took, on the thread that called.
        regions: parallel regions; 0 where it ran on the calling thread alone.
        threads: what each thread did; empty where there was no region.
    """

    begin: float
    us: float
    regions: int
    threads: tuple[ThreadTimes, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """What calls of a model took.

    Attributes:
        calls: how many were recorded.
        call_us: a call, the mean of those that count.
        median_us: the median of all calls.
        segments: per native step its spans, in the order of the segment's calls.
        sizes: per native step the values of its symbols, in their order.
        fallbacks: the fallback steps, in order.
    """

    calls: int
    call_us: float
    median_us: float
    segments: tuple[tuple[Span, ...], ...]
    sizes: tuple[tuple[int, ...], ...]
    fallbacks: tuple[Span, ...]


class _StampedFallbacks:
    """Fallback steps that note when they began and ended."""

    def __init__(self, clock: TimestampCounter) -> None:
        self.noted: list[tuple[int, int]] = []
        noted = self.noted

        class Noting(FallbackCall):
            """A fallback step with stamps."""

            def run(self, inputs: Sequence[Any]) -> list[Any]:
                begin = clock.read()
                result = super().run(inputs)
                noted.append((begin, clock.read()))
                return result

        self.make: Callable[[FallbackStep, np.ndarray, str], FallbackCall] = Noting


class Recorder:
    """An instrumented model with its arrays.

    Args:
        artifact: of the instrumented model.
        segments: its native entries.
        buffers: per segment the name of the output that holds its stamps.
        threads: per call.
        feeds: the inputs.
    """

    def __init__(
        self,
        artifact: Artifact,
        segments: Sequence[Segment],
        buffers: Sequence[str],
        threads: int,
        feeds: Mapping[str, Any],
    ) -> None:
        self._clock = timestamp_counter()
        self._fallbacks = _StampedFallbacks(self._clock)
        self._feeds, self._segments, self._buffers = dict(feeds), tuple(segments), tuple(buffers)
        self.executable = Executable(artifact, threads, fallback=self._fallbacks.make)

    def results(self) -> dict[str, Any]:
        """The model's outputs, without the stamps."""
        found = self.executable.run(self._feeds)
        return {name: value for name, value in found.items() if name not in self._buffers}

    def run(self) -> None:
        """One call that is not recorded."""
        self.executable.run(self._feeds)

    def record(self, seconds: float) -> Recording:
        """Calls the model for about so many seconds, at least `MIN_CALLS` times.

        Raises:
            FeedError, ShapeError: the inputs are not the model's.
        """
        for _ in range(WARMUP_CALLS):
            self.executable.run(self._feeds)
        calls: list[_Call] = []
        first = self._clock.mark()
        end = time.perf_counter() + seconds
        while len(calls) < MIN_CALLS or (time.perf_counter() < end and len(calls) < MAX_CALLS):
            calls.append(self._call())
        time.sleep(max(0.0, MIN_RATE_SECONDS - (time.perf_counter_ns() - first.ns) / 1e9))
        return _mean_recording(calls, self._segments, first.rate_until(self._clock.mark()))

    def _call(self) -> "_Call":
        self._fallbacks.noted.clear()
        begin = self._clock.read()
        outputs = self.executable.run(self._feeds)
        end = self._clock.read()
        # copied, as the memory of outputs serves a later call
        return _Call(begin, end, [np.array(outputs[b]) for b in self._buffers], list(self._fallbacks.noted))


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """The readings of one call."""

    begin: int
    end: int
    buffers: list[Array]
    fallbacks: list[tuple[int, int]]


def stamp_overhead(recorder: Recorder, plain: Executable, feeds: Mapping[str, Any], seconds: float) -> float:
    """What the stamps cost: time of an instrumented call over that of a plain one, less 1.

    Both take turns in short blocks of calls, and of each the fastest quarter counts: a disturbed machine would tell
    about itself instead. Code that lies elsewhere may be faster or slower by a per cent, whatever it notes.
    """
    named = dict(feeds)
    runs: Mapping[str, Callable[[], object]] = {"plain": lambda: plain.run(named), "stamped": recorder.run}
    found: dict[str, list[float]] = {name: [] for name in runs}
    for call in runs.values():
        call()
    end = time.perf_counter() + seconds
    while len(found["plain"]) < 2 * BLOCK_CALLS or time.perf_counter() < end:
        for name, call in runs.items():
            # the other's calls have taken the caches
            call()
            found[name] += time_calls(call, BLOCK_CALLS)
    means = {name: float(np.mean(sorted(x)[: len(x) // 4])) for name, x in found.items()}
    return means["stamped"] / means["plain"] - 1.0


def _mean_recording(calls: Sequence[_Call], segments: Sequence[Segment], rate: float) -> Recording:
    """The mean over the fastest quarter of the calls; `rate` in ticks per microsecond."""
    ordered = sorted(calls, key=lambda c: c.end - c.begin)
    fastest = ordered[: max(1, len(ordered) // 4)]
    origins = np.array([c.begin for c in fastest])
    spans: list[tuple[Span, ...]] = []
    sizes: list[tuple[int, ...]] = []
    for k, segment in enumerate(segments):
        buffers = np.stack([c.buffers[k] for c in fastest])
        sizes.append(tuple(int(x) for x in buffers[0, : len(segment.symbols)]))
        spans.append(_segment_spans(buffers, segment, origins, rate))
    steps = np.array([c.fallbacks for c in fastest], np.int64).reshape(len(fastest), -1, 2)
    mean = (steps - origins[:, None, None]).mean(0) / rate
    fallbacks = tuple(Span(float(b), float(e - b), 0, ()) for b, e in mean)
    call = float(np.mean([c.end - c.begin for c in fastest])) / rate
    median = float(np.median([c.end - c.begin for c in ordered])) / rate
    return Recording(len(calls), call, median, tuple(spans), tuple(sizes), fallbacks)


def _segment_spans(buffers: Array, segment: Segment, origins: Array, rate: float) -> tuple[Span, ...]:
    """Of one segment, from its stamps of several calls."""
    noted = segment.timestamps
    if noted is None:
        return ()
    first, count = noted.first_record(len(segment.symbols)), len(segment.calls)
    lines = (
        buffers[:, first:]
        .reshape(len(buffers), count, 1 + noted.threads, TimestampBuffer.WORDS_PER_LINE)
        .astype(np.float64)
    )
    own, threads = lines[:, :, 0], lines[:, :, 1:]
    since = origins[:, None].astype(np.float64)
    begin = (own[:, :, timestamps.BEGIN] - since).mean(0) / rate
    us = (own[:, :, timestamps.END] - own[:, :, timestamps.BEGIN]).mean(0) / rate
    regions = np.round(own[:, :, timestamps.REGIONS].mean(0)).astype(int)
    return tuple(
        Span(float(begin[k]), float(us[k]), int(regions[k]), _thread_times(own[:, k], threads[:, k], since, rate)
             if regions[k] else ())
        for k in range(count)
    )  # fmt: skip


def _thread_times(own: Array, lines: Array, since: Array, rate: float) -> tuple[ThreadTimes, ...]:
    """Of one kernel: `own` [calls, words], `lines` [calls, threads, words]."""
    present = lines[:, :, timestamps.JOINED] > 0
    region = own[:, timestamps.PARALLEL, None]
    busy = lines[:, :, timestamps.BUSY]
    # a thread that never came was not there for the whole of the regions
    start = np.where(present, lines[:, :, timestamps.DELAY], region)
    wait = np.maximum(region - busy - start, 0.0)
    first = np.where(present, lines[:, :, timestamps.FIRST] - since, 0.0)
    last = np.where(present, lines[:, :, timestamps.LAST] - since, 0.0)
    table = np.stack([start, busy, wait, first, last], -1).mean(0) / rate
    return tuple(ThreadTimes(*(float(x) for x in row)) for row in table)
