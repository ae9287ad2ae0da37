"""Candidates that crash, hang, eat memory or compute nonsense; made of code that no legal trace gives.

`python -m tests.measure.hostile_candidates --count 50` measures so many of each kind, and checks that each failure has
its name and that honest programs are timed in between and afterwards.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import cycle, islice

from tilewright.codegen import compile_object, emit_llvm
from tilewright.loops.parser import parse
from tilewright.machine import Target
from tilewright.measure.build import BuiltCandidate, Sizes, build_candidate
from tilewright.measure.interleaved_blocks import RunPlan
from tilewright.measure.local_measurer import Builder, LocalMeasurer, MeasureOptions
from tilewright.measure.task_cases import case_sizes
from tilewright.optimize import task_json
from tilewright.optimize.measurer import Candidate, Failure, FailureKind, Measurement
from tilewright.optimize.task import Task

KERNEL = """\
func kernel(a0: float32[ROWS, 16], a1: float32[16, 8], out: float32[ROWS, 8]):
    for i0 in serial(ROWS):
        for i1 in serial(8):
            for r0 in serial(16):
                block out(v_i0: ROWS = i0, v_i1: 8 = i1, reduce v_r0: 16 = r0):
                    init out[v_i0, v_i1] = 0.0
                    out[v_i0, v_i1] = out[v_i0, v_i1] + a0[v_i0, v_r0] * a1[v_r0, v_i1]
"""
ROWS = 12
FUSION = {"pattern": "reduction", "outer_rank": 2, "stages": [["register reduction", None]]}

CRASHES = {
    "null store": "store volatile float 0.0, ptr null",
    "wild store": "store volatile float 0.0, ptr inttoptr (i64 1152921504606846976 to ptr)",
    "wild load": "%x = load volatile float, ptr inttoptr (i64 81985529216486895 to ptr)",
    "abort": "call void @abort()",
    "trap": "call void @llvm.trap()",
    "exit": "call void @_exit(i32 0)",
    "exit status": "call void @_exit(i32 7)",
    "signal": "call i32 @raise(i32 11)",
    "killed": "call i32 @raise(i32 9)",
    "code that is data": "call void inttoptr (i64 4096 to ptr)()",
}
"""Statements that end the process."""

HANGS = {
    "loop": "br label %again\nagain:\n  call void asm sideeffect \"\", \"\"()\n  br label %again\nnever:",
    "sleep": "call i32 @sleep(i32 100000)",
    "pause": "call i32 @pause()",
    "deaf loop": "call ptr @signal(i32 15, ptr inttoptr (i64 1 to ptr))\n  br label %again\nagain:\n"
                 "  call i32 @sleep(i32 100000)\n  br label %again\nnever:",
    "reading": "%x = alloca i8\n  call i64 @read(i32 0, ptr %x, i64 1)\n  call i32 @pause()",
}  # fmt: skip
"""Statements that do not come to an end."""

_EAT = """br label %again
again:
  %p = call ptr @malloc(i64 SIZE)
  call ptr @memset(ptr %p, i32 1, i64 SIZE)
  call void asm sideeffect "", "r,~{memory}"(ptr %p)
  br label %again
never:"""

MEMORY_EATERS = {f"{1 << k} bytes at a time": _EAT.replace("SIZE", str(1 << k)) for k in (14, 16, 20, 24, 26)}
"""Statements that reserve and touch memory until there is none."""

_DECLARATIONS = """
declare void @abort()
declare void @llvm.trap()
declare void @_exit(i32)
declare i32 @raise(i32)
declare i32 @sleep(i32)
declare i32 @pause()
declare ptr @signal(i32, ptr)
declare i64 @read(i32, ptr, i64)
declare ptr @malloc(i64)
declare ptr @memset(ptr, i32, i64)
"""

WRONG_LOOPS = {
    "other operation": ("* a1", "+ a1"),
    "a row too few": (f"serial({ROWS})", f"serial({ROWS - 1})"),
    "a column too few": ("in serial(8)", "in serial(7)"),
    "a term too few": ("in serial(16)", "in serial(15)"),
    "another start": ("= 0.0", "= 0.001"),
    "another operand": ("a0[v_i0, v_r0]", "a0[v_r0 % 12, v_r0]"),
    "a factor": ("* a1[v_r0, v_i1]", "* (a1[v_r0, v_i1] * 1.001)"),
    "not a number": ("* a1[v_r0, v_i1]", "* (a1[v_r0, v_i1] * float32('nan'))"),
    "one element": ("* a1[v_r0, v_i1]", "* select(v_i0 * v_i1 == 77, 0.0, a1[v_r0, v_i1])"),
}
"""Changes of the loops, by which results differ."""


def honest_task() -> Task:
    """A small product."""
    func = KERNEL.replace("ROWS", str(ROWS))
    return task_json.decode(
        {
            "format": "tilewright-task", "version": 2, "func": func, "constants": [], "fusion": FUSION,
            "samples": None, "threads": 1, "target": Target.host().name,
        }
    )  # fmt: skip


def with_statement(built: BuiltCandidate, statement: str, target: Target, globals_: str = "") -> BuiltCandidate:
    """The candidate with a kernel that does one thing alone."""
    symbols = ", ".join(["ptr"] * len(built.kernel.parameters) + ["i64"] * (len(built.kernel.symbols[0]) + 1))
    text = (
        f'target triple = "{target.triple}"\n{globals_}\n{_DECLARATIONS}\n'
        f"define void @{built.kernel.name}({symbols}) {{\n  {statement}\n  ret void\n}}\n"
    )
    return replace(built, code=compile_object(text, target))


def with_loops(task: Task, changed: tuple[str, str], cases: Sequence[Sizes]) -> BuiltCandidate:
    """Code of other loops than the task's, of the same parameters; they are not verified."""
    built = build_candidate(task, Candidate(()), cases)
    text = task.form.text
    assert changed[0] in text, changed
    func = parse(text.replace(*changed))
    return replace(built, code=compile_object(emit_llvm([func], [], task.target), task.target))


class Prepared(Builder):
    """A builder that gives prepared code for all candidates but the incumbent."""

    def __init__(self, options: MeasureOptions, prepared: Sequence[BuiltCandidate | Failure]) -> None:
        super().__init__(options)
        self.prepared = prepared

    def build(
        self, task: Task, candidates: Sequence[Candidate], cases: Sequence[Sizes]
    ) -> list[BuiltCandidate | Failure]:
        """The code of the incumbent."""
        (incumbent,) = candidates
        return [build_candidate(task, incumbent, cases)]

    def build_each(
        self, task: Task, candidates: Sequence[Candidate], cases: Sequence[Sizes], ahead: int | None = None
    ) -> Generator[tuple[int, BuiltCandidate | Failure]]:
        """The prepared code."""
        assert len(candidates) == len(self.prepared)
        yield from enumerate(self.prepared)


def prepared(kind: FailureKind, count: int) -> list[BuiltCandidate]:
    """Candidates of `honest_task` that fail in one way, as many as asked for, in turns."""
    task = honest_task()
    cases = case_sizes(task)
    if kind is FailureKind.WRONG_ANSWER:
        code = [with_loops(task, change, cases) for change in WRONG_LOOPS.values()]
    else:
        statements = {
            FailureKind.CRASH: CRASHES, FailureKind.TIMEOUT: HANGS, FailureKind.OUT_OF_MEMORY: MEMORY_EATERS,
        }[kind]  # fmt: skip
        honest = build_candidate(task, Candidate(()), cases)
        code = [with_statement(honest, s, task.target) for s in statements.values()]
    return list(islice(cycle(code), count))


def measured(
    kind: FailureKind, count: int, options: MeasureOptions
) -> tuple[Sequence[Measurement], Sequence[Measurement]]:
    """What becomes of candidates that fail in one way, and of the honest program after them."""
    task, bad = honest_task(), prepared(kind, count)
    with LocalMeasurer(options, Prepared(options, bad)) as measurer:
        measurements = measurer.measure(task, [Candidate(())] * count, Candidate(()))
        measurer._builder = Builder(options)
        return measurements, measurer.measure(task, [Candidate(())])


KINDS = (FailureKind.CRASH, FailureKind.TIMEOUT, FailureKind.OUT_OF_MEMORY, FailureKind.WRONG_ANSWER)


def quick_options(kind: FailureKind) -> MeasureOptions:
    """Limits by which a campaign is short."""
    seconds = 0.3 if kind is FailureKind.TIMEOUT else 10.0
    plan = RunPlan(rounds=1, seconds=0.001, pause=0.0, canary_seconds=0.0005)
    return MeasureOptions(run_seconds=seconds, memory_bytes=256 << 20, plan=plan, builders=1)


def main() -> int:
    """Runs the campaign; the status is 1 where a failure has another name."""
    parser = argparse.ArgumentParser(prog="python -m tests.measure.hostile_candidates", description=__doc__)
    parser.add_argument("--count", type=int, default=50, help="candidates of each kind")
    count = parser.parse_args().count
    wrong = 0
    for kind in KINDS:
        start = time.monotonic()
        measurements, after = measured(kind, count, quick_options(kind))
        names = Counter(str(getattr(m.result, "kind", "no failure")) for m in measurements)
        wrong += names != {kind.value: count} or after[0].nanoseconds is None
        seconds, figures = time.monotonic() - start, ", ".join(f"{n} {name}" for name, n in names.items())
        print(f"{kind}: {figures}; {seconds:.1f} s, then an honest program: {after[0].result}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
