"""`python -m tests.fuzz_chains --count 500 [--seed S]`: random chains of two to four contractions in one kernel each.

Prints failing seeds with the chain; a failing seed runs again with `--count 1 --seed S`.
"""

import argparse
import sys
import traceback
from collections import Counter

from tests.fuzz_chains.check import check


def main() -> int:
    """Runs the campaign; the exit status is 1 where a seed failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="fused chains")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--show", action="store_true", help="print chains")
    options = parser.parse_args()
    fused, failed, reasons = 0, 0, Counter[str]()
    seed = options.seed
    while fused + failed < options.count:
        try:
            outcome = check(seed)
        except Exception:
            failed += 1
            print(f"seed {seed} failed:\n{traceback.format_exc()}", flush=True)
        else:
            fused += outcome.tiling is not None
            reasons.update(r.split(": ", 1)[-1][:60] for r in outcome.refusals)
            if options.show or options.count == 1:
                print(f"seed {seed}\n{outcome.chain}\n{outcome.tiling}\n", flush=True)
            if options.count == 1:
                break
        seed += 1
    print(f"{fused} chains fused, {failed} failed, of {seed - options.seed} drawn")
    print(f"{sum(reasons.values())} refused:")
    for reason, count in reasons.most_common(20):
        print(f"{count:6} {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
