"""`python -m tests.fuzz_tuning [--rounds 200] [--folder build/fuzz_tuning]`: kills a tuning at random moments.

A tuning with two workers is killed with SIGKILL, again and again. After each round the store opens, passes SQLite's
check and holds every measurement that any round acknowledged; the next round goes on from there. The last one may end.
The campaign goes on where it was stopped; another folder begins anew.
"""

import argparse
import random
import shutil
import sys
from pathlib import Path

from tests.fuzz_tuning.rounds import KilledTuning

FIRST_SECONDS, BEFORE_SECONDS, AFTER_SECONDS = 20.0, 1.0, 5.0
"""When the first round is killed; and the others, around the time of the first measurement of the round before."""

EARLY_FRACTION = 0.15
"""Rounds that are killed at any time from the start on."""


def main() -> int:
    """Runs the campaign; the exit status is 1 where something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz_tuning"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tuning, counter = KilledTuning(options.folder), options.folder / "rounds.txt"
    done = int(counter.read_text()) if counter.exists() else 0
    startup, working = FIRST_SECONDS, 0
    for k in range(done, options.rounds):
        rng = random.Random(f"{options.seed} {k}")
        earliest = 0.3 if rng.random() < EARLY_FRACTION else max(0.3, startup - BEFORE_SECONDS)
        seconds = rng.uniform(earliest, startup + AFTER_SECONDS)
        before = len(tuning.acknowledged)
        first = tuning.run(seconds, seed=0)
        # it starts later on a busier machine
        startup = first if first is not None else max(startup, min(seconds, FIRST_SECONDS))
        working += len(tuning.acknowledged) > before
        counter.write_text(str(k + 1))
        shutil.rmtree(options.folder / "tmp", ignore_errors=True)
        (options.folder / "tmp").mkdir()
        gained = len(tuning.acknowledged) - before
        total = len(tuning.acknowledged)
        print(f"round {k + 1}: killed after {seconds:.1f} s, {gained} measured, {total} in all", flush=True)
        if tuning.problems:
            break
    tuning.run(None, seed=0, trials=4)
    total, stored = len(tuning.acknowledged), tuning.check()
    print(f"{total} acknowledged measurements, {stored} in the store, {working} rounds measured something")
    print("\n".join(tuning.problems) or "nothing is lost")
    return 1 if tuning.problems else 0


if __name__ == "__main__":
    sys.exit(main())
