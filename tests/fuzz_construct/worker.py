"""One process that checks operators for a campaign: a job per line comes in, lines of JSON go out.

{"seed": 1, "index": 7}    draw an operator and check it
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
from tests.fuzz_construct.check import check, random_case, understood

Send = Callable[[dict[str, Any]], None]


def work(job: dict[str, Any], send: Send) -> dict[str, Any]:
    """The result of a job: what is wrong, and how many kernels were constructed."""
    tally: Tally = {}
    result: dict[str, Any] = {"tally": tally, "failure": None}
    try:
        known = job.get("case")
        case = random_case(job["seed"], job["index"]) if known is None else understood(Case.from_json(known))
        send({"case": case.to_json()})
        check(case, tally)
    except WrongError as failure:
        result["failure"] = [failure.stage, failure.what]
    except Exception as error:
        failure = failure_of("check", error)
        result["failure"] = [failure.stage, failure.what]
    return result


def main() -> None:
    """Serves jobs until the input ends."""
    # what libraries print must not mix with the answers
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    faulthandler.enable()

    def send(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    for line in sys.stdin:
        send({"result": work(json.loads(line), send)})


if __name__ == "__main__":
    main()
