"""The measurements that a search was told: one per distinct trace, and the fastest of them."""

from collections.abc import Iterable

from tilewright.optimize.measurer import Measurement
from tilewright.schedule.step import Trace


class MeasurementHistory:
    """Measurements by the traces of their candidates; of equal traces the first one counts."""

    def __init__(self) -> None:
        self._by_trace: dict[str, Measurement] = {}
        self._fastest: Measurement | None = None

    @property
    def fastest(self) -> Measurement | None:
        """The one with the least time; None where all failed."""
        return self._fastest

    def __len__(self) -> int:
        return len(self._by_trace)

    def __contains__(self, key: str) -> bool:
        return key in self._by_trace

    def get(self, key: str) -> Measurement | None:
        """The measurement of a trace, by its `trace_key`; None where there is none."""
        return self._by_trace.get(key)

    def add(self, measurements: Iterable[Measurement]) -> list[Measurement]:
        """Keeps measurements; the new ones."""
        new: list[Measurement] = []
        for m in measurements:
            key = trace_key(m.candidate.trace)
            if key in self._by_trace:
                continue
            self._by_trace[key] = m
            least = None if self._fastest is None else self._fastest.nanoseconds
            if m.nanoseconds is not None and (least is None or m.nanoseconds < least):
                self._fastest = m
            new.append(m)
        return new


def trace_key(trace: Trace) -> str:
    """A text that is equal for equal traces alone."""
    return "\n".join(map(str, trace))
