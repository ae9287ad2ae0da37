"""Tree of reuse with what came of it: from whose program each kernel started, what that cost, and what it gained."""

from typing import Any

from tilewright.driver.tune.result import TuningResult
from tilewright.driver.tune.session import TunedKernel
from tilewright.optimize.reuse.plan import StepKind
from tilewright.report.profile import printable


def reuse_text(result: TuningResult) -> str:
    """The tree as it was planned, one step a line with its estimated cost and its result; empty where there is none."""
    if result.reuse is None:
        return ""
    outcomes = [_outcome(k) for k in _kernels(result)]
    return "\n".join(printable(line) for line in result.reuse.text(outcomes).split("\n"))


def reuse_data(result: TuningResult) -> dict[str, Any] | None:
    """The tree as plain data, each step with its trials and its times in microseconds; None where there is none."""
    if result.reuse is None:
        return None
    data = result.reuse.data()
    for step, kernel in zip(data["steps"], _kernels(result), strict=True):
        step["trials"] = 0 if kernel is None else kernel.trials
        step["before_us"] = None if kernel is None else _us(kernel.before)
        step["after_us"] = None if kernel is None else _us(kernel.after)
    return data


def _kernels(result: TuningResult) -> list[TunedKernel | None]:
    """Per step the kernel that was tuned; None for recorded programs, and for bridges that cannot be constructed."""
    steps = () if result.reuse is None else result.reuse.steps
    known = result.reuse_kernels or tuple(None if s.kind is StepKind.RECORDED else s.operator for s in steps)
    kernels = result.session.kernels
    return [None if k is None or k >= len(kernels) else kernels[k] for k in known]


def _us(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else round(nanoseconds / 1e3, 4)


def _outcome(kernel: TunedKernel | None) -> str:
    """What came of a step, in words; empty for what is not tuned."""
    if kernel is None:
        return ""
    if kernel.refusal:
        return kernel.refusal
    if kernel.before is None or kernel.after is None:
        return "not reached"
    times = f"{kernel.before / 1e3:.2f} -> {kernel.after / 1e3:.2f} us ({kernel.speedup:.3f} times as fast)"
    return f"{kernel.trials} measured, {times}"
