"""`python -m tests.fuzz_trees --count 500 [--seed S]`: random tile trees over kernels of several computations.

Prints failing seeds with the kernel and the tree; a failing seed runs again with `--count 1 --seed S`.
"""

import argparse
import sys
import traceback
from collections import Counter

from tests.fuzz_trees.check import check, is_fused

from tilewright.loops import private_memory
from tilewright.tile.tree_text import show_tree


def main() -> int:
    """Runs the campaign; the exit status is 1 where a seed failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="accepted trees")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--stack-bytes", type=int, help="private buffers beyond this are slices of the workspace")
    parser.add_argument("--show", action="store_true", help="print kernels and trees")
    options = parser.parse_args()
    if options.stack_bytes is not None:
        private_memory.MAX_STACK_BYTES = options.stack_bytes
    accepted, failed, fused, sliced, reasons = 0, 0, 0, 0, Counter[str]()
    seed = options.seed
    while accepted < options.count:
        try:
            outcome = check(seed)
        except Exception:
            failed += 1
            accepted += 1
            print(f"seed {seed} failed:\n{traceback.format_exc()}", flush=True)
        else:
            accepted += outcome.tree is not None or options.count == 1
            fused += outcome.tree is not None and is_fused(outcome.tree)
            sliced += bool(outcome.slices)
            reasons.update(r.split(": ", 1)[-1][:60] for r in outcome.refusals)
            if options.show and outcome.tree is not None:
                print(f"seed {seed}\n{outcome.kernel}\n{show_tree(outcome.tree)}\n", flush=True)
        seed += 1
    print(f"{accepted} trees accepted, {fused} with fused statements, {sliced} with slices per thread, {failed} failed")
    print(f"{sum(reasons.values())} refused:")
    for reason, count in reasons.most_common(20):
        print(f"{count:6} {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
