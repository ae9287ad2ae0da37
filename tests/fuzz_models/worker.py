"""One process that checks models for a campaign: a job per line comes in, lines of JSON go out.

{"seed": 1, "index": 7}    draw a model and check it
{"case": {...}}            check this one

Args: the first and the last version of the operator set that are drawn.
"""

import faulthandler
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from tests.fuzz.case import Case, Tally
from tests.fuzz.check import WrongError, failure_of
from tests.fuzz_models.check import OPSETS, check, random_case, understood

Send = Callable[[dict[str, Any]], None]


def work(job: dict[str, Any], send: Send, opsets: tuple[int, int]) -> dict[str, Any]:
    """The result of a job: what is wrong, and which kinds of nodes the model has."""
    tally: Tally = {}
    result: dict[str, Any] = {"tally": tally, "failure": None}
    try:
        known = job.get("case")
        drawn = random_case(job["seed"], job["index"], opsets) if known is None else understood(Case.from_json(known))
        send({"case": drawn.to_json()})
        check(drawn, tally)
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
    opsets = (int(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) == 3 else OPSETS

    def send(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    for line in sys.stdin:
        send({"result": work(json.loads(line), send, opsets)})


if __name__ == "__main__":
    main()
