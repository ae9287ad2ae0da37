"""`python -m tests.fuzz_conv_chains --count 300 [--seed S]`: random chains of convolutions with halos.

Prints failing seeds with what was drawn; a failing seed runs again with `--count 1 --seed S`.
"""

import argparse
import sys
import traceback
from collections import Counter

from tests.fuzz_conv_chains.check import check


def main() -> int:
    """Runs the campaign; the exit status is 1 where a seed failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="fused chains")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    fused, failed, kinds, reasons = 0, 0, Counter[str](), Counter[str]()
    seed = options.seed
    while fused < options.count:
        try:
            outcome = check(seed)
        except Exception:
            failed += 1
            fused += 1
            print(f"seed {seed} failed:\n{traceback.format_exc()}", flush=True)
        else:
            fused += outcome.tiling is not None or options.count == 1
            if outcome.tiling is not None:
                kinds[outcome.kind] += 1
            else:
                reasons[outcome.refusal.split(": ", 1)[-1][:90]] += 1
        seed += 1
    print(f"{fused} chains fused, {failed} failed: {', '.join(f'{n} {k}' for k, n in sorted(kinds.items()))}")
    print(f"{sum(reasons.values())} refused:")
    for reason, count in reasons.most_common(20):
        print(f"{count:6} {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
