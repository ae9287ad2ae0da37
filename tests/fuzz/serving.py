"""What processes of campaigns of whole models and operators have in common: a job per line comes in, JSON goes out.

Before a case is checked it goes out, so that the campaign knows what crashed a worker.

    {"seed": 1, "index": 7}    draw a case and check it
    {"case": {...}}            check this one
"""

import faulthandler
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from tests.fuzz.case import Case, Tally
from tests.fuzz.check import WrongError, failure_of

Send = Callable[[dict[str, Any]], None]
Draw = Callable[[int, int], Case]
Check = Callable[[Case, Tally], None]


def result_of(job: dict[str, Any], send: Send, draw: Draw, understood: Callable[[Case], Case], check: Check) -> Any:
    """The result of a job: what is wrong, and what is counted.

    Args:
        job: what came in.
        send: gets the case.
        draw: makes the case of a seed and a number.
        understood: a given case with all its choices within their ranges.
        check: raises a `WrongError` where something is wrong; counts.
    """
    tally: Tally = {}
    result: dict[str, Any] = {"tally": tally, "failure": None}
    try:
        record = job.get("case")
        case = draw(job["seed"], job["index"]) if record is None else understood(Case.from_json(record))
        send({"case": case.to_json()})
        check(case, tally)
    except WrongError as failure:
        result["failure"] = [failure.stage, failure.what]
    except Exception as error:
        failure = failure_of("check", error)
        result["failure"] = [failure.stage, failure.what]
    return result


def serve(draw: Draw, understood: Callable[[Case], Case], check: Check) -> None:
    """Serves jobs until the input ends."""
    # what libraries print must not mix with the answers
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    faulthandler.enable()

    def send(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    for line in sys.stdin:
        send({"result": result_of(json.loads(line), send, draw, understood, check)})
