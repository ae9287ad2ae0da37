"""Campaigns over seeds: what a seed draws is checked until enough of it counts; failing seeds are printed."""

import argparse
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

MAX_REASON_LENGTH = 90

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class SeedCampaign:
    """The state of a campaign.

    Attributes:
        first_seed: the first seed.
        seed: the next one.
        counted: outcomes that count, failures among them.
        failed: seeds that failed.
        reasons: why what was drawn was refused.
        left: how many are left to be checked where it was stopped.
    """

    first_seed: int
    seed: int
    counted: int = 0
    failed: int = 0
    reasons: Counter[str] = field(default_factory=Counter[str])
    left: int = 0

    def run(self, count: int, check: Callable[[int], tuple[bool, Iterable[str]]]) -> None:
        """Checks seeds until `count` outcomes count; of a count of 1 the first seed alone. Ctrl-C, or the end of a time
        limit, stops it after the seed at hand.

        Args:
            count: how many.
            check: checks a seed, and says whether its outcome counts, and the refusals.
        """
        stops: list[int] = []
        handlers = {s: signal.signal(s, lambda number, _: stops.append(number)) for s in STOP_SIGNALS}
        try:
            while self.counted < count and not stops:
                self._check_next(check, count == 1)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        self.left = max(0, count - self.counted) if stops else 0

    def _check_next(self, check: Callable[[int], tuple[bool, Iterable[str]]], is_single: bool) -> None:
        try:
            counts, refusals = check(self.seed)
        except Exception:
            self.failed += 1
            counts, refusals = True, ()
            print(f"seed {self.seed} failed:\n{traceback.format_exc()}", flush=True)
        self.counted += counts or is_single
        self.reasons.update(r.split(": ", 1)[-1][:MAX_REASON_LENGTH] for r in refusals)
        self.seed += 1

    def report(self, what: str) -> int:
        """Prints the outcome, `what` of the counted ones among it; the exit status."""
        print(f"{what}, {self.failed} failed, of {self.seed - self.first_seed} drawn")
        print(f"{sum(self.reasons.values())} refused:")
        for reason, count in self.reasons.most_common(20):
            print(f"{count:6} {reason}")
        if self.left:
            print(f"stopped; go on with --count {self.left} --seed {self.seed}")
        return 1 if self.failed or self.left else 0


def campaign_parser(description: str | None, count: int, what: str) -> argparse.ArgumentParser:
    """The command line of a campaign: how many of what, and the first seed."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=count, help=what)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    return parser
