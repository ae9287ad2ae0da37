"""What campaigns found, as small as it got; `failure` in the files says how it showed then."""

from pathlib import Path

import pytest
from tests.fuzz.case import Case
from tests.fuzz_models.check import check, understood

FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))


@pytest.mark.parametrize("file", FOUND, ids=[f.stem for f in FOUND])
def test_stays_right(file: Path) -> None:
    check(understood(Case.load(file)))
