"""Warnings of commands: lines on standard error, each text once but for lost machines, and none with `--quiet`."""

import pytest
from tests.cli.command import run

from tilewright.cli.common import Result
from tilewright.errors import MachineWarning, TilewrightWarning
from tilewright.user_warnings import warn_user


@pytest.mark.parametrize("category", TilewrightWarning.__subclasses__())
def test_warnings_are_lines_that_quiet_drops(capsys, monkeypatch, category):
    def execute(options):
        for machine in ("north", "south", "north"):
            warn_user(f"{machine} is lost", category)
        return Result(None)

    monkeypatch.setattr("tilewright.cli.doctor.execute", execute)
    lines = ["warning: north is lost\n", "warning: south is lost\n"]
    again = lines[:1] if category is MachineWarning else []
    assert run(capsys, "doctor") == (0, "", "".join([*lines, *again]))
    assert run(capsys, "doctor", "--quiet") == (0, "", "")
