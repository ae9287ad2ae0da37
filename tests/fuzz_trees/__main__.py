"""`python -m tests.fuzz_trees --count 500 [--seed S]`: random tile trees over kernels of several computations.

Prints failing seeds with the kernel and the tree; a failing seed runs again with `--count 1 --seed S`.
"""

import sys
from collections.abc import Iterable

from tests.fuzz.seeds import SeedCampaign, campaign_parser
from tests.fuzz_trees.check import check, is_fused

from tilewright.loops import private_memory
from tilewright.tile.tree_text import show_tree


def main() -> int:
    """Runs the campaign; the exit status is 1 where a seed failed."""
    parser = campaign_parser(__doc__, 500, "accepted trees")
    parser.add_argument("--stack-bytes", type=int, help="private buffers beyond this are slices of the workspace")
    parser.add_argument("--show", action="store_true", help="print kernels and trees")
    options = parser.parse_args()
    if options.stack_bytes is not None:
        private_memory.MAX_STACK_BYTES = options.stack_bytes
    campaign, fused, sliced = SeedCampaign(options.seed, options.seed), 0, 0

    def checked(seed: int) -> tuple[bool, Iterable[str]]:
        nonlocal fused, sliced
        outcome = check(seed)
        fused += outcome.tree is not None and is_fused(outcome.tree)
        sliced += bool(outcome.slices)
        if options.show and outcome.tree is not None:
            print(f"seed {seed}\n{outcome.kernel}\n{show_tree(outcome.tree)}\n", flush=True)
        return outcome.tree is not None, outcome.refusals

    campaign.run(options.count, checked)
    accepted = f"{campaign.counted - campaign.failed} trees accepted"
    return campaign.report(f"{accepted}, {fused} with fused statements, {sliced} with slices per thread")


if __name__ == "__main__":
    sys.exit(main())
