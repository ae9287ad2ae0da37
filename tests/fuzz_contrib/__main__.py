"""`python -m tests.fuzz_contrib [--count 20] [--operator NAME] [--seed S] [--fresh]`: operators of `com.microsoft`.

Every operator is compiled in `count` random settings and compared with ONNX Runtime. What passed is written to
`build/fuzz_contrib/passed.txt` and skipped when the campaign is started again with the same code generator, unless
`--fresh` is given. Failing settings are printed; one runs again with `--operator NAME --seed S --count 1`.
"""

import argparse
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz_contrib.check import DRAWS, check_natively

from tilewright.codegen.generator_version import generator_version

PASSED = Path("build/fuzz_contrib/passed.txt")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20, help="settings per operator")
    parser.add_argument("--seed", type=int, default=0, help="the first setting")
    parser.add_argument("--operator", choices=tuple(DRAWS), help="only this operator")
    parser.add_argument("--fresh", action="store_true", help="also what passed before")
    return parser.parse_args()


def _settings(options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    for operator in [options.operator] if options.operator else DRAWS:
        for seed in range(options.seed, options.seed + options.count):
            yield operator, seed


def main() -> int:
    """Runs the campaign; the exit status is 1 where a setting failed."""
    options, version = _parse(), generator_version()
    PASSED.parent.mkdir(parents=True, exist_ok=True)
    done = set(PASSED.read_text().splitlines()) if PASSED.exists() and not options.fresh else set[str]()
    passed = failed = 0
    with PASSED.open("a" if not options.fresh else "w") as record:
        for operator, seed in _settings(options):
            line = f"{version} {operator} {seed}"
            if line not in done:
                try:
                    check_natively(operator, seed)
                except Exception:
                    failed += 1
                    print(f"{operator}, seed {seed} failed:\n{traceback.format_exc()}", flush=True)
                    continue
                print(line, file=record, flush=True)
            passed += 1
    print(f"{passed} settings of {1 if options.operator else len(DRAWS)} operators passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
