"""Proves that a change of the compiler changes no code: compiles the same cases with two revisions and compares.

    python -m benchmarks.replay --base HEAD~1            # all cases
    python -m benchmarks.replay --base HEAD~1 --only 'conv/*'
    python -m benchmarks.replay --list

The exit status is 0 where all cases are equal, 1 where one differs or is a fault, 2 where a side could not be run.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.replay import compare, record
from benchmarks.replay.cases import cases
from benchmarks.replay.runner import FAULT, path_of
from benchmarks.replay.sides import SideError, run_base, run_here

SHOWN = 5
"""Cases whose differences are shown; of the others only the parts are named."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs both sides and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", metavar="REVISION", help="what the working tree is compared with")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="cases of that name (a pattern, or a part)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes (default: CPUs)")
    parser.add_argument("--show", type=int, default=SHOWN, metavar="N", help="differing cases that are shown in full")
    parser.add_argument("--list", action="store_true", help="name the cases and do nothing")
    options = parser.parse_args(arguments)
    names = [c.name for c in cases(options.only)]
    if options.list:
        print("\n".join(names))
        return 0
    if options.base is None:
        parser.error("--base is missing")
    if not names:
        parser.error(f"no case is called {options.only!r}; see --list")
    try:
        base = run_base(options.base, options.only, options.jobs)
        with tempfile.TemporaryDirectory(prefix="replay-") as folder:
            run_here(Path(folder), options.only, options.jobs)
            return report(names, base, Path(folder), options.show)
    except SideError as error:
        print(error, file=sys.stderr)
        return 2


def report(names: Sequence[str], base: Path, here: Path, show: int) -> int:
    """Prints what differs between the records of two folders; the exit status."""
    differing, refused, faults = 0, 0, 0
    for name in names:
        old, new = path_of(base, name), path_of(here, name)
        hashes = record.read_digests(old), record.read_digests(new)
        if hashes[0] is None or hashes[1] is None:
            raise SideError(f"{name} has no record")
        parts = compare.differing(hashes[0], hashes[1])
        refused += hashes[1]["error"] != record.digest("")
        faults += hashes[1]["error"] == record.digest(FAULT)
        if not parts:
            continue
        differing += 1
        if differing <= show:
            print(name)
            print(compare.explained(record.read(old), record.read(new), parts))
        else:
            print(f"{name}  differs in {', '.join(parts)}")
    if faults:
        print(f"{faults} cases end in a fault of the compiler, which proves nothing")
    counted = f"{len(names)} cases ({refused} refused)"
    print(f"{counted}: {differing} differ" if differing else f"{counted}: all are equal")
    return 1 if differing or faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
