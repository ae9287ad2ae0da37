"""Campaigns over seeds: what a seed draws is checked until enough of it counts; failing seeds are printed."""

import argparse
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

MAX_REASON_LENGTH = 90


@dataclass(slots=True)
class SeedCampaign:
    """The state of a campaign.

    Attributes:
        first_seed: the first seed.
        seed: the next one.
        counted: outcomes that count, failures among them.
        failed: seeds that failed.
        reasons: why what was drawn was refused.
    """

    first_seed: int
    seed: int
    counted: int = 0
    failed: int = 0
    reasons: Counter[str] = field(default_factory=Counter[str])

    def run(self, count: int, check: Callable[[int], tuple[bool, Iterable[str]]]) -> None:
        """Checks seeds until `count` outcomes count; of a count of 1 the first seed alone.

        Args:
            count: how many.
            check: checks a seed, and says whether its outcome counts, and the refusals.
        """
        while self.counted < count:
            try:
                counts, refusals = check(self.seed)
            except Exception:
                self.failed += 1
                counts, refusals = True, ()
                print(f"seed {self.seed} failed:\n{traceback.format_exc()}", flush=True)
            self.counted += counts or count == 1
            self.reasons.update(r.split(": ", 1)[-1][:MAX_REASON_LENGTH] for r in refusals)
            self.seed += 1

    def report(self, what: str) -> int:
        """Prints the outcome, `what` of the counted ones among it; the exit status."""
        print(f"{what}, {self.failed} failed, of {self.seed - self.first_seed} drawn")
        print(f"{sum(self.reasons.values())} refused:")
        for reason, count in self.reasons.most_common(20):
            print(f"{count:6} {reason}")
        return 1 if self.failed else 0


def campaign_parser(description: str | None, count: int, what: str) -> argparse.ArgumentParser:
    """The command line of a campaign: how many of what, and the first seed."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=count, help=what)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    return parser
