"""`python -m tests.fuzz`: a campaign, or one of its failing cases again."""

import argparse
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.campaign import Campaign, Worker, smallest
from tests.fuzz.case import Case
from tests.fuzz.check import scheduled

from tilewright.errors import ScheduleError
from tilewright.loops.printer import show
from tilewright.schedule.step import to_python


@dataclass(frozen=True)
class Kind:
    """A kind of campaign.

    Attributes:
        module: its name, as in `python -m tests.fuzz`.
        folder: for failing cases and the state, unless another is given.
        describe: shows a case.
        worker: makes a process that checks cases.
        counted: what the summary counts, and the two ways in which it went.
    """

    module: str
    folder: Path
    describe: Callable[[Case], None]
    worker: Callable[[], Worker] = Worker
    counted: tuple[str, str, str] = ("primitive", "applied", "rejected")


def main(kind: Kind) -> int:
    """Runs the command line of a kind of campaign; the status is 1 where something failed."""
    parser = argparse.ArgumentParser(prog=f"python -m {kind.module}", description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="programs (default 500)")
    parser.add_argument("--seed", type=int, default=1, help="which programs (default 1)")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes (default 2)")
    parser.add_argument("--folder", type=Path, default=kind.folder, help="for failing cases and the state")
    parser.add_argument("--only", type=int, metavar="INDEX", help="this program alone, shrunk if it fails")
    parser.add_argument("--resume", action="store_true", help="go on where a campaign of this seed was stopped")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="check a failing case again and show it")
    parser.add_argument("--shrink", action="store_true", help="with --replay: try to make it smaller first")
    options = parser.parse_args()
    if options.replay is not None:
        return again(options.replay, options.shrink, kind)
    if options.only is not None:
        return only(options.folder, options.seed, options.only, kind)
    campaign = Campaign(options.folder, options.seed, options.count, worker=kind.worker)
    if options.resume:
        campaign.resume()
    # a polite request to end is answered like Ctrl-C: the state is written
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failures = campaign.run(options.jobs)
    print(campaign.summary(*kind.counted))
    return 1 if failures else 0


def only(folder: Path, seed: int, index: int, kind: Kind) -> int:
    """Checks one program of a campaign; where it fails, it is written to a file as small as it gets."""
    worker = kind.worker()
    outcome = worker.ask({"seed": seed, "index": index})
    worker.close()
    if outcome.case is None:
        print(outcome.failure)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"program-{seed}-{index}.json"
    path.write_text(json.dumps({"failure": outcome.failure, "case": outcome.case}, indent=1))
    return again(path, smaller=True, kind=kind)


def again(path: Path, smaller: bool, kind: Kind) -> int:
    """Checks the case of a file in a worker, and shows it."""
    worker = kind.worker()
    case = json.loads(path.read_text())["case"]
    outcome = worker.ask({"case": case})
    if smaller and outcome.failure is not None:
        case, outcome.failure = smallest(case, outcome.failure, worker.ask)
        path.write_text(json.dumps({"failure": outcome.failure, "case": case}, indent=1))
    worker.close()
    kind.describe(Case.from_json(case))
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


SCHEDULES = Kind("tests.fuzz", Path("build/fuzz"), describe)

if __name__ == "__main__":
    sys.exit(main(SCHEDULES))
