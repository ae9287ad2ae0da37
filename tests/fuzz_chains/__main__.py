"""`python -m tests.fuzz_chains --count 500 [--seed S]`: random chains of two to four contractions in one kernel each.

Prints failing seeds with the chain; a failing seed runs again with `--count 1 --seed S`.
"""

import sys
from collections.abc import Iterable

from tests.fuzz.seeds import SeedCampaign, campaign_parser
from tests.fuzz_chains.check import check


def main() -> int:
    """Runs the campaign; the exit status is 1 where a seed failed."""
    parser = campaign_parser(__doc__, 500, "fused chains")
    parser.add_argument("--show", action="store_true", help="print chains")
    options = parser.parse_args()
    campaign = SeedCampaign(options.seed, options.seed)

    def checked(seed: int) -> tuple[bool, Iterable[str]]:
        outcome = check(seed)
        if options.show or options.count == 1:
            print(f"seed {seed}\n{outcome.chain}\n{outcome.tiling}\n", flush=True)
        return outcome.tiling is not None, outcome.refusals

    campaign.run(options.count, checked)
    return campaign.report(f"{campaign.counted - campaign.failed} chains fused")


if __name__ == "__main__":
    sys.exit(main())
