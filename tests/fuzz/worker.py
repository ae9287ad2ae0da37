"""One process that checks cases for a campaign: a job per line comes in, lines of JSON go out.

Before a program's code runs, its case goes out, so that the campaign knows what crashed a worker.

    {"seed": 1, "index": 7}          draw a case and check it
    {"case": {...}, "lenient": true} check this one; illegal steps are left out
"""

import faulthandler
import json
import os
import sys
from random import Random
from typing import Any

from tests.fuzz.case import Case, Tally, random_case
from tests.fuzz.check import WrongError, check, failure_of, scheduled

from tilewright.errors import ScheduleError

GPU_EVERY = 8
"""One program in so many may bind loops to axes; no code is made for it."""

DEEP_EVERY = 4


def drawn(seed: int, index: int, tally: Tally) -> Case:
    """The case of a number.

    Raises:
        WrongError: drawing it failed; the case that did so was sent.
    """
    case = None
    try:
        for case in random_case(Random(f"{seed}/{index}"), tally, index % GPU_EVERY == 0):  # noqa: B007
            pass
    except Exception as error:
        step = case.trace[-1].primitive if case is not None and case.trace else "computation"
        send({"case": case.to_json() if case is not None else None})
        raise failure_of(f"apply {step}", error) from error
    assert case is not None
    return case


def work(job: dict[str, Any]) -> dict[str, Any]:
    """The result of a job: the case, what is wrong with it, and how often every primitive was used."""
    tally: Tally = {}
    result: dict[str, Any] = {"tally": tally, "failure": None}
    try:
        if "case" in job:
            case = scheduled(Case.from_json(job["case"]), job.get("lenient", False))[2]
        else:
            case = drawn(job["seed"], job["index"], tally)
        send({"case": case.to_json()})
        check(case, deep=job.get("index", 0) % DEEP_EVERY == 0)
    except WrongError as failure:
        result["failure"] = [failure.stage, failure.what]
    except ScheduleError as error:
        result["failure"] = ["illegal", str(error)]
    return result


def send(message: dict[str, Any]) -> None:
    """One line to the campaign."""
    _answers.write(json.dumps(message) + "\n")
    _answers.flush()


# what libraries print must not mix with the answers
_answers = os.fdopen(os.dup(1), "w")

if __name__ == "__main__":
    os.dup2(2, 1)
    faulthandler.enable()
    for line in sys.stdin:
        send({"result": work(json.loads(line))})
