"""Profiles calls of an instrumented model: times of kernels and fallback steps, and activity of threads.

Calls follow one another as in a program, so caches, clocks and threads are in their usual state. Reported times are
means over the fastest quarter of the calls: sums over kernels then match the call, and disturbed calls do not count.
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
from tilewright.runtime.block_calls import Resources, RuntimeCall

MIN_CALLS, MAX_CALLS = 8, 20_000
"""Minimum and maximum number of calls of a profile."""

WARMUP_CALLS = 3
"""Calls before the recorded ones."""

BLOCK_CALLS = 8
"""Calls per block when two programs are timed in turns."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Activity of one thread during a kernel, in microseconds.

    Attributes:
        start: from the start of the kernel's parallel regions to the thread's first work in them.
        busy: time of its work.
        wait: from the end of its work to the end of the regions.
        first, last: begin and end of its work, from the beginning of the call; 0 if it took no part.
    """

    start: float
    busy: float
    wait: float
    first: float
    last: float


@dataclass(frozen=True, slots=True)
class TimedSpan:
    """One kernel, copy or fallback step within a call, in microseconds.

    Attributes:
        begin: from the beginning of the call.
        us: duration on the calling thread.
        regions: number of parallel regions; 0 if it ran on the calling thread alone.
        threads: activity of each thread; empty without regions.
    """

    begin: float
    us: float
    regions: int
    threads: tuple[ThreadTimes, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """Times of a model's calls.

    Attributes:
        calls: number of recorded calls.
        call_us: mean duration of the calls that count.
        median_us: median duration of all calls.
        segments: spans per native step, in the order of the segment's calls.
        sizes: values of the symbols per native step, in their order.
        runtime_steps: spans of the model's own fallbacks, conditionals and loops, in order.
    """

    calls: int
    call_us: float
    median_us: float
    segments: tuple[tuple[TimedSpan, ...], ...]
    sizes: tuple[tuple[int, ...], ...]
    runtime_steps: tuple[TimedSpan, ...]


class _StampedCall:
    """A fallback, conditional or loop that records begin and end."""

    def __init__(self, call: RuntimeCall, clock: TimestampCounter, intervals: list[tuple[int, int]]) -> None:
        self.step, self.blocks, self.shape_error = call.step, call.blocks, call.shape_error
        self._call, self._clock, self._intervals = call, clock, intervals

    def run(self, inputs: Sequence[Any], sizes: dict[str, int], resources: Resources) -> list[Any]:
        """The outputs of the call."""
        begin = self._clock.read()
        result = self._call.run(inputs, sizes, resources)
        self._intervals.append((begin, self._clock.read()))
        return result


class Recorder:
    """An instrumented model with its arrays.

    Args:
        artifact: the artifact of the instrumented model.
        segments: its native entries.
        buffers: per segment the name of the output with its timestamps.
        threads: number of threads.
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
        self._intervals: list[tuple[int, int]] = []
        self._feeds, self._segments, self._buffers = dict(feeds), tuple(segments), tuple(buffers)
        self.executable = Executable(artifact, threads, observe=self._stamped)

    def _stamped(self, call: RuntimeCall) -> RuntimeCall:
        return _StampedCall(call, self._clock, self._intervals)

    def results(self) -> dict[str, Any]:
        """The model's outputs, without the timestamps."""
        outputs = self.executable.run(self._feeds)
        return {name: value for name, value in outputs.items() if name not in self._buffers}

    def run(self) -> None:
        """Calls the model once, without recording."""
        self.executable.run(self._feeds)

    def record(self, seconds: float) -> Recording:
        """Calls the model for about so many seconds, at least `MIN_CALLS` times.

        Raises:
            FeedError, ShapeError: the inputs do not fit the model.
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
        self._intervals.clear()
        begin = self._clock.read()
        outputs = self.executable.run(self._feeds)
        end = self._clock.read()
        # copied, as a later call reuses the outputs' memory
        return _Call(begin, end, [np.array(outputs[b]) for b in self._buffers], list(self._intervals))


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """Timestamps of one call."""

    begin: int
    end: int
    buffers: list[Array]
    runtime_steps: list[tuple[int, int]]


def stamp_overhead(recorder: Recorder, plain: Executable, feeds: Mapping[str, Any], seconds: float) -> float:
    """Relative cost of the timestamps: time of an instrumented call over that of a plain one, minus 1.

    Both are timed in turns in short blocks of calls, and the fastest quarter of each counts, so that disturbances of
    the machine do not. A different code alignment alone may change the time by a per cent.
    """
    named = dict(feeds)
    runs: Mapping[str, Callable[[], object]] = {"plain": lambda: plain.run(named), "stamped": recorder.run}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for call in runs.values():
        call()
    end = time.perf_counter() + seconds
    while len(times["plain"]) < 2 * BLOCK_CALLS or time.perf_counter() < end:
        for name, call in runs.items():
            # refill the caches after the other's calls
            call()
            times[name] += time_calls(call, BLOCK_CALLS)
    means = {name: float(np.mean(sorted(x)[: len(x) // 4])) for name, x in times.items()}
    return means["stamped"] / means["plain"] - 1.0


def _mean_recording(calls: Sequence[_Call], segments: Sequence[Segment], rate: float) -> Recording:
    """Means over the fastest quarter of the calls; `rate` in ticks per microsecond."""
    ordered = sorted(calls, key=lambda c: c.end - c.begin)
    fastest = ordered[: max(1, len(ordered) // 4)]
    origins = np.array([c.begin for c in fastest])
    spans: list[tuple[TimedSpan, ...]] = []
    sizes: list[tuple[int, ...]] = []
    for k, segment in enumerate(segments):
        buffers = np.stack([c.buffers[k] for c in fastest])
        sizes.append(tuple(int(x) for x in buffers[0, : len(segment.symbols)]))
        spans.append(_segment_spans(buffers, segment, origins, rate))
    steps = np.array([c.runtime_steps for c in fastest], np.int64).reshape(len(fastest), -1, 2)
    mean = (steps - origins[:, None, None]).mean(0) / rate
    runtime_steps = tuple(TimedSpan(float(b), float(e - b), 0, ()) for b, e in mean)
    call = float(np.mean([c.end - c.begin for c in fastest])) / rate
    median = float(np.median([c.end - c.begin for c in ordered])) / rate
    return Recording(len(calls), call, median, tuple(spans), tuple(sizes), runtime_steps)


def _segment_spans(buffers: Array, segment: Segment, origins: Array, rate: float) -> tuple[TimedSpan, ...]:
    """Spans of one segment, from its timestamps of several calls."""
    record = segment.timestamps
    if record is None:
        return ()
    first, count = record.first_record(len(segment.symbols)), len(segment.calls)
    shape = len(buffers), count, 1 + record.threads, TimestampBuffer.WORDS_PER_LINE
    lines = buffers[:, first:].reshape(shape).astype(np.float64)
    caller, threads = lines[:, :, 0], lines[:, :, 1:]
    since = origins[:, None].astype(np.float64)
    begin = (caller[:, :, timestamps.BEGIN] - since).mean(0) / rate
    us = (caller[:, :, timestamps.END] - caller[:, :, timestamps.BEGIN]).mean(0) / rate
    regions = np.round(caller[:, :, timestamps.REGIONS].mean(0)).astype(int)
    spans: list[TimedSpan] = []
    for k in range(count):
        times = _thread_times(caller[:, k], threads[:, k], since, rate) if regions[k] else ()
        spans.append(TimedSpan(float(begin[k]), float(us[k]), int(regions[k]), times))
    return tuple(spans)


def _thread_times(caller: Array, lines: Array, since: Array, rate: float) -> tuple[ThreadTimes, ...]:
    """Activity of the threads during one kernel.

    Args:
        caller: timestamps of the calling thread [calls, words].
        lines: timestamps of all threads [calls, threads, words].
        since: begin of each call, in ticks.
        rate: ticks per microsecond.
    """
    present = lines[:, :, timestamps.JOINED] > 0
    region = caller[:, timestamps.PARALLEL, None]
    busy = lines[:, :, timestamps.BUSY]
    # a thread that never joined was absent for the whole regions
    start = np.where(present, lines[:, :, timestamps.DELAY], region)
    wait = np.maximum(region - busy - start, 0.0)
    first = np.where(present, lines[:, :, timestamps.FIRST] - since, 0.0)
    last = np.where(present, lines[:, :, timestamps.LAST] - since, 0.0)
    table = np.stack([start, busy, wait, first, last], -1).mean(0) / rate
    return tuple(ThreadTimes(*(float(x) for x in row)) for row in table)
