"""The class `Schedule`: a function being scheduled, and the trace of the primitives applied to it."""

from tilewright.loops.ir import Func
from tilewright.loops.printer import show
from tilewright.schedule.methods import Primitives
from tilewright.schedule.step import Step, Trace, apply, replay, to_python
from tilewright.verify.verifier import verify


class Schedule(Primitives):
    """A function being scheduled: applies primitives and records them. Every primitive is a method.

    `func` is the present function, `origin` the untransformed one, `trace` the steps between them. A refused step
    changes nothing.
    """

    def __init__(self, func: Func) -> None:
        self.origin = func
        self.func = func
        self.trace: Trace = ()

    def do(self, primitive: str, *args: object, **named: object) -> None:
        """Applies a primitive by name and records it."""
        step = Step.of(primitive, *args, **named)
        self._record(step, apply(self.func, step))

    def apply(self, trace: Trace) -> None:
        """Applies the steps of a trace and records them; if one is refused, none is applied.

        Raises:
            ScheduleError: a step is not legal here; names it.
        """
        func = replay(self.func, trace)
        self.func, self.trace = func, (*self.trace, *trace)

    def copy(self) -> "Schedule":
        """A schedule in the same state; steps of one of them leave the other one as it is."""
        other = Schedule(self.origin)
        other.func, other.trace = self.func, self.trace
        return other

    def show(self) -> str:
        """The text of the present loops."""
        return show(self.func)

    def to_python(self, name: str = "s") -> str:
        """The trace as Python text that repeats it on a schedule called `name`."""
        return to_python(self.trace, name)

    def verify(self) -> None:
        """Verifies the present loops: everything is proved, nothing sampled.

        Raises:
            VerifyError: lists every error with its loop or block.
        """
        verify(self.func)

    def _record(self, step: Step, func: Func) -> None:
        self.func, self.trace = func, (*self.trace, step)

    def _try(self, primitive: str, *args: object) -> tuple[Step, Func]:
        step = Step.of(primitive, *args)
        return step, apply(self.func, step)

    def __str__(self) -> str:
        return self.show()
