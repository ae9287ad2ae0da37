"""`python -m tests.fuzz_conv_chains --count 300 [--seed S]`: random chains of convolutions with halos.

Prints failing seeds with what was drawn; a failing seed runs again with `--count 1 --seed S`.
"""

import sys
from collections import Counter
from collections.abc import Iterable

from tests.fuzz.seeds import SeedCampaign, campaign_parser
from tests.fuzz_conv_chains.check import check


def main() -> int:
    """Runs the campaign; the exit status is 1 where a seed failed."""
    options = campaign_parser(__doc__, 300, "fused chains").parse_args()
    campaign, kinds = SeedCampaign(options.seed, options.seed), Counter[str]()

    def checked(seed: int) -> tuple[bool, Iterable[str]]:
        outcome = check(seed)
        if outcome.tiling is None:
            return False, (outcome.refusal,)
        kinds[outcome.kind] += 1
        return True, ()

    campaign.run(options.count, checked)
    fused = f"{campaign.counted - campaign.failed} chains fused"
    return campaign.report(f"{fused} ({', '.join(f'{n} {k}' for k, n in sorted(kinds.items()))})")


if __name__ == "__main__":
    sys.exit(main())
