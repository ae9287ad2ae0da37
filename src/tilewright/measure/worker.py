"""A process that builds or runs candidates on request: `python -m tilewright.measure.worker` (`worker_process.py`).

The protocol is lines of JSON on standard input and output. The worker's first line is {"ready": source hash}, null
where the sources have changed while it imported them. Then every request is answered by {"value": ...} or
{"failure": [kind, message]}, or {"incumbent_failure": [kind, message]} where the candidate did not run, as its
incumbent could not be prepared:

    {"do": "limit", "bytes": 4294967296}
    {"do": "build", "task": {...}, "candidate": {...}, "cases": [{"n0": 8}, {"n0": 64}]}
    {"do": "run", "candidate": {...}, "incumbent": null, "cases": [{...}], "options": [2, [3, 0.01, 0.0, 0.002], 3.0],
     "limits": [10.0, 4294967296]}

`limit` bounds the memory of builds, which run in the worker itself: its caches make the next one faster, and if it dies
a new one is started. A run is forked, so that the worker outlives it; operands and incumbents are kept for the next
one. What is built is read without trust; the code that is run is restricted in time and memory alone.
"""

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from tilewright.errors import ScheduleError, TaskError, TilewrightError, TraceError, VerifyError
from tilewright.gc_policy import GC_THRESHOLD
from tilewright.measure.build import build_candidate, decode_built, decode_candidate, encode_built
from tilewright.measure.case_operands import CaseData
from tilewright.measure.incumbent import PreparedIncumbent
from tilewright.measure.interleaved_blocks import RunPlan
from tilewright.measure.isolation import IsolatedError, Limits, call_isolated, limit_memory
from tilewright.measure.run import RunOptions, WrongAnswerError, check_and_time
from tilewright.measure.run_setup import RunSetup
from tilewright.optimize import task_json
from tilewright.optimize.measurer import FailureKind
from tilewright.version import source_hash

Reply = dict[str, Any]

ILLEGAL = (ScheduleError, VerifyError, TraceError, TaskError)
"""Errors of what a candidate asks for; others are faults of code generation."""

RUN_ERRORS = (IsolatedError, TilewrightError, MemoryError)
"""Errors of runs."""

INCUMBENT_FAILURE = "incumbent_failure"
"""What an answer has instead of a value or a failure where the incumbent could not be prepared."""


def answer_build(request: Mapping[str, Any]) -> Reply:
    """Builds a candidate; the same in every process."""
    try:
        task = task_json.decode(request["task"])
        built = build_candidate(task, decode_candidate(request["candidate"]), request["cases"])
    except ILLEGAL as error:
        return failed(FailureKind.ILLEGAL_PROGRAM, str(error))
    except MemoryError as error:
        return failed(FailureKind.OUT_OF_MEMORY, str(error) or "its loops or code take too much memory")
    except (TilewrightError, RecursionError, ValueError, KeyError, TypeError) as error:
        return failed(FailureKind.BUILD_ERROR, f"{type(error).__name__}: {error}")
    return {"value": encode_built(built)}


_run_setup = RunSetup()
"""What the runs of this process have in common."""


def answer_run(request: Mapping[str, Any]) -> Reply:
    """Checks and times a built candidate in a process of its own, which is forked with the operands in memory."""
    threads, plan, max_ratio = request["options"]
    options, limits = RunOptions(threads, RunPlan(*plan), max_ratio), Limits(*request["limits"])
    described = request["incumbent"]
    try:
        cases = _run_setup.cases(request["cases"])
    except MemoryError as error:
        return _failure_of(error)
    try:
        incumbent = described and _run_setup.incumbent(described, threads, limits)
    except RUN_ERRORS as error:
        return {INCUMBENT_FAILURE: _failure_of(error)["failure"]}
    try:
        return call_isolated(lambda: _run_candidate(request["candidate"], incumbent, cases, options), limits)
    except RUN_ERRORS as error:
        return _failure_of(error)


def _failure_of(error: Exception) -> Reply:
    """The answer of one of `RUN_ERRORS`."""
    if isinstance(error, IsolatedError):
        return failed(error.kind, error.message)
    if isinstance(error, MemoryError):
        return failed(FailureKind.OUT_OF_MEMORY, str(error) or "its operands take too much memory")
    return failed(FailureKind.BUILD_ERROR, str(error))


def _run_candidate(
    candidate: Mapping[str, Any], incumbent: PreparedIncumbent | None, cases: Sequence[CaseData], options: RunOptions
) -> Reply:
    """The answer of a candidate's own process."""
    try:
        return {"value": check_and_time(decode_built(candidate), incumbent, cases, options)}
    except WrongAnswerError as error:
        return failed(FailureKind.WRONG_ANSWER, str(error))
    except TilewrightError as error:
        return failed(FailureKind.BUILD_ERROR, str(error))


def answer_limit(request: Mapping[str, Any]) -> Reply:
    """Limits the memory of what this process does from now on."""
    limit_memory(request["bytes"])
    return {"value": None}


def failed(kind: FailureKind, message: str) -> Reply:
    """The answer of a failure."""
    return {"failure": [kind.value, message]}


ANSWERS: dict[str, Callable[[Mapping[str, Any]], Reply]] = {
    "limit": answer_limit,
    "build": answer_build,
    "run": answer_run,
}


Answers = Mapping[str, Callable[[Mapping[str, Any]], Reply]]
"""What answers requests, by what they ask to do."""


def serve(source: TextIO, answer: Callable[[Reply], None], answers: Answers) -> None:
    """Answers the requests in the lines of `source`, which end with the parent."""
    answer({"ready": source_hash()})
    for line in source:
        request = json.loads(line)
        answer(answers[request["do"]](request))


def main(answers: Answers = ANSWERS) -> None:
    """Entry point of the process.

    Args:
        answers: what it can do.
    """
    gc.set_threshold(GC_THRESHOLD)
    # what is measured may print: standard output becomes standard error, and only answers go to the parent
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        serve(sys.stdin, lambda data: print(json.dumps(data), file=pipe, flush=True), answers)
    except Exception:
        traceback.print_exc()
        raise


if __name__ == "__main__":
    main()
