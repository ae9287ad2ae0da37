"""Workers of this machine: one request is measured after the other."""

import time
from collections.abc import Callable, Mapping

from tilewright.errors import MeasureError
from tilewright.measure.workers.interface import Effort, MeasureAnswer, MeasureRequest
from tilewright.optimize.measurer import Measurer


class LocalWorkers:
    """Workers that are measurers of this machine.

    Args:
        measurers: one per effort.
        clock: seconds of a monotonic clock.
    """

    def __init__(self, measurers: Mapping[Effort, Measurer], clock: Callable[[], float] = time.monotonic) -> None:
        self._measurers, self._clock = measurers, clock
        self._waiting: dict[int, MeasureRequest] = {}

    @property
    def concurrency(self) -> int:
        """One: programs are timed one by one."""
        return 1

    def submit(self, number: int, request: MeasureRequest) -> None:
        """Keeps a request until `wait`."""
        self._waiting[number] = request

    def wait(self) -> MeasureAnswer:
        """Measures the waiting request with the smallest number."""
        number = min(self._waiting)
        request, begin = self._waiting.pop(number), self._clock()
        try:
            measurer = self._measurers[request.effort]
            measured = tuple(measurer.measure(request.task, request.candidates, request.incumbent))
        except MeasureError as error:
            return MeasureAnswer(number, (), error, self._clock() - begin)
        return MeasureAnswer(number, measured, None, self._clock() - begin)
