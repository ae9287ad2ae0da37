"""`python -m tests.onnx_backend`: all cases, a table of what becomes of them, the operators of fallbacks, what failed.

`--initializers` runs the cases whose axes, shapes or scales are inputs, with these as initializers. With `--json FILE`
every outcome is written as it comes; a run that is stopped goes on with `--resume`.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.onnx_backend.cases import KINDS, Outcome, load_cases
from tests.onnx_backend.initializers import WithInitializers, has_structure
from tests.onnx_backend.workers import Key, run_all


def table(outcomes: dict[Key, Outcome]) -> str:
    """Counts by category and kind."""
    counts = Counter((category, o.kind) for (category, _), o in outcomes.items())
    rows = [("", *KINDS, "passed", "all")]
    categories = list(dict.fromkeys(category for category, _ in outcomes))
    for category in (*categories, "all"):
        chosen = categories if category == "all" else [category]
        cells = [sum(counts[c, kind] for c in chosen) for kind in KINDS]
        rows.append((category, *map(str, cells), str(cells[0] + cells[1]), str(sum(cells))))
    return "\n".join(f"{row[0]:20}" + "".join(f"{cell:>10}" for cell in row[1:]) for row in rows)


def fallback_operators(outcomes: dict[Key, Outcome]) -> str:
    """The operators that run on the reference evaluator, with the number of cases, most first."""
    counts = Counter(o.detail for o in outcomes.values() if o.kind == "fallback")
    return "on the reference evaluator: " + ", ".join(f"{name} {n}" for name, n in counts.most_common())


def written_outcomes(path: Path) -> dict[Key, Outcome]:
    """What a run that was stopped has written; nothing without a file."""
    entries = json.loads(path.read_text()) if path.exists() else []
    return {(e["category"], e["name"]): Outcome(e["kind"], e["detail"]) for e in entries}


def write_outcomes(path: Path, outcomes: Mapping[Key, Outcome]) -> None:
    """Writes outcomes in place of those that the file has."""
    listed = [{"category": c, "name": n, "kind": o.kind, "detail": o.detail} for (c, n), o in outcomes.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(listed, indent=1))
    part.replace(path)


def main() -> int:
    """The exit status is 1 where a case is wrong, fails with an exception of another kind, or crashes."""
    parser = argparse.ArgumentParser(prog="python -m tests.onnx_backend")
    parser.add_argument("-k", default="", help="only cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write every case's outcome there")
    parser.add_argument("--resume", action="store_true", help="only the cases that the file of --json has not")
    parser.add_argument("--initializers", action="store_true", help="cases with axes or shapes, as initializers")
    options = parser.parse_args()
    cases = load_cases()
    if options.initializers:
        probes = load_cases(WithInitializers.probe)
        cases = {key: case for key, case in load_cases(WithInitializers).items() if has_structure(probes[key])}
    cases = {key: case for key, case in cases.items() if options.k in key[1]}
    if options.resume and options.json is None:
        parser.error("--resume needs --json FILE, which says what a run has done")
    outcomes = written_outcomes(options.json) if options.resume else {}
    left = {key: case for key, case in cases.items() if key not in outcomes}
    for key, outcome in run_all(left, options.jobs):
        outcomes[key] = outcome
        if options.json is not None:
            write_outcomes(options.json, outcomes)
    for (category, name), outcome in sorted(outcomes.items(), key=lambda item: (item[1].kind, item[1].detail)):
        if outcome.kind not in ("native", "fallback"):
            print(f"{outcome.kind:8} {category} {name}: {outcome.detail}")
    print(fallback_operators(outcomes))
    print(table(outcomes))
    return int(any(o.kind in ("wrong", "failed", "crashed") for o in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
