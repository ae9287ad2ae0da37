"""A tuning that is killed loses nothing; `make fuzz-tuning` does so 200 times."""

from pathlib import Path

from tests.fuzz_tuning.rounds import KilledTuning


def test_a_killed_tuning_keeps_what_it_acknowledged_and_goes_on(tmp_path: Path) -> None:
    tuning = KilledTuning(tmp_path)
    for seconds in (9.0, 6.0):
        tuning.run(seconds, seed=0)
    before = len(tuning.acknowledged)
    tuning.run(None, seed=0, trials=3)
    assert len(tuning.acknowledged) > before
    # a killed round may have stored its last measurements and not come to acknowledge them
    assert len(tuning.acknowledged) <= tuning.check() <= len(tuning.begun)
    assert tuning.problems == []
    # a campaign that was stopped within a round has read nothing of what that acknowledged
    (tmp_path / "acknowledged.txt").unlink()
    resumed = KilledTuning(tmp_path)
    assert resumed.check() == tuning.check()
    assert resumed.problems == []
