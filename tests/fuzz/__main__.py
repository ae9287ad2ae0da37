"""`python -m tests.fuzz`: a campaign, or one of its failing cases again."""

import argparse
import json
import sys
from pathlib import Path

from tests.fuzz.campaign import Campaign, Worker, smallest
from tests.fuzz.case import Case
from tests.fuzz.check import scheduled

from tilewright.errors import ScheduleError
from tilewright.loops.printer import show
from tilewright.schedule.trace import to_python


def main() -> int:
    """Runs the command line; the status is 1 where something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="programs (default 500)")
    parser.add_argument("--seed", type=int, default=1, help="which programs (default 1)")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes (default 2)")
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz"), help="for failing cases and the state")
    parser.add_argument("--only", type=int, metavar="INDEX", help="this program alone, shrunk if it fails")
    parser.add_argument("--resume", action="store_true", help="go on where a campaign of this seed was stopped")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="check a failing case again and show it")
    parser.add_argument("--shrink", action="store_true", help="with --replay: try to make it smaller first")
    given = parser.parse_args()
    if given.replay is not None:
        return again(given.replay, given.shrink)
    if given.only is not None:
        return only(given.folder, given.seed, given.only)
    campaign = Campaign(given.folder, given.seed, given.count)
    if given.resume:
        campaign.resume()
    failures = campaign.run(given.jobs)
    print(campaign.summary())
    return 1 if failures else 0


def only(folder: Path, seed: int, index: int) -> int:
    """Checks one program of a campaign; where it fails, it is written to a file as small as it gets."""
    worker = Worker()
    outcome = worker.ask({"seed": seed, "index": index})
    worker.close()
    if outcome.case is None:
        print(outcome.failure)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"program-{seed}-{index}.json"
    path.write_text(json.dumps({"failure": outcome.failure, "case": outcome.case}, indent=1))
    return again(path, smaller=True)


def again(path: Path, smaller: bool) -> int:
    """Checks the case of a file in a worker, and shows it."""
    worker = Worker()
    case = json.loads(path.read_text())["case"]
    outcome = worker.ask({"case": case})
    if smaller and outcome.failure is not None:
        case, outcome.failure = smallest(case, outcome.failure, worker.ask)
        path.write_text(json.dumps({"failure": outcome.failure, "case": case}, indent=1))
    worker.close()
    describe(Case.from_json(case))
    print("passed" if outcome.failure is None else f"{outcome.failure[0]}: {outcome.failure[1]}")
    return 0 if outcome.failure is None else 1


def describe(case: Case) -> None:
    """Prints the computation, the schedule as Python text, and the loops that it makes."""
    print(case.kind, dict(case.record))
    for name, layout in case.layouts.items():
        print(f"layout of {name}: {layout}")
    print(show(case.program().stored(case.layouts)))
    print(to_python(case.trace))
    for steps in (case.trace, case.trace[:-1]):
        try:
            print(show(scheduled(Case(case.kind, case.record, case.layouts, steps, case.seed))[1]))
            return
        except ScheduleError as error:
            print(error)
            return
        except Exception as error:
            print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    sys.exit(main())
