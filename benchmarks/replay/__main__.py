"""Proves that a change of the compiler changes no code: compiles the same cases with two revisions and compares.

    python -m benchmarks.replay --base main            # all cases
    python -m benchmarks.replay --base main --only 'conv/*'
    python -m benchmarks.replay --list

The exit status is 0 where all cases are equal, 1 where one differs, 2 where a side could not be run.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.replay import compare, record
from benchmarks.replay.cases import cases
from benchmarks.replay.runner import path_of
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
            return _report(names, base, Path(folder), options.show)
    except SideError as error:
        print(error, file=sys.stderr)
        return 2


def _report(names: Sequence[str], base: Path, here: Path, show: int) -> int:
    """Prints what differs; the exit status."""
    differing = 0
    errors = 0
    for name in names:
        old, new = path_of(base, name), path_of(here, name)
        hashes = record.read_digests(old), record.read_digests(new)
        if hashes[0] is None or hashes[1] is None:
            raise SideError(f"{name} has no record")
        parts = compare.differing(hashes[0], hashes[1])
        errors += hashes[1]["error"] != record.digest("")
        if not parts:
            continue
        differing += 1
        if differing <= show:
            print(name)
            print(compare.explained(record.read(old), record.read(new), parts))
        else:
            print(f"{name}  differs in {', '.join(parts)}")
    failing = f" ({errors} of them are refused)" if errors else ""
    print(f"{len(names)} cases{failing}: " + (f"{differing} differ" if differing else "all are equal"))
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
