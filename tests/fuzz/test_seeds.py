"""Campaigns over seeds: what counts, what fails, and going on after a stop."""

import os
import signal
from collections.abc import Iterable

import pytest
from tests.fuzz.seeds import SeedCampaign


def test_a_campaign_says_where_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def checked(seed: int) -> tuple[bool, Iterable[str]]:
        if seed == 14:
            os.kill(os.getpid(), signal.SIGTERM)
        if seed == 12:
            raise ValueError("wrong")
        return seed % 2 == 0, () if seed % 2 == 0 else ("place: odd",)

    campaign = SeedCampaign(10, 10)
    campaign.run(9, checked)
    assert campaign.report("done") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "seed 12 failed:"
    # 10, 12 and 14 count, one of them as a failure
    assert lines[-4:] == ["done, 1 failed, of 5 drawn", "2 refused:", "     2 odd",
                          "stopped; go on with --count 6 --seed 15"]  # fmt: skip
    assert signal.getsignal(signal.SIGTERM) is before
    rest = SeedCampaign(15, 15)
    rest.run(6, lambda seed: (seed % 2 == 0, ()))
    assert (rest.counted, rest.left, rest.seed, rest.report("done")) == (6, 0, 27, 0)
