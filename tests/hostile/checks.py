"""Cases that must be found: they show that the watch and the time limit work."""

from pathlib import Path

from tests.hostile.case import Case


def reads_beside_the_model(place: Path) -> None:
    """Opens a file in the working directory, by its name alone."""
    (place / "elsewhere" / "secret.bin").write_bytes(b"secret")
    with open("secret.bin", "rb") as file:
        assert file.read() == b"secret"


def takes_for_ever(place: Path) -> None:
    """Does not end."""
    while True:
        pass


CHECKS = {run.__name__: Case(run, "works", "") for run in (reads_beside_the_model, takes_for_ever)}
