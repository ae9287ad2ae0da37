"""What campaigns found, as small as it got; `failure` in the files says how it showed then."""

from pathlib import Path

import pytest
from tests.fuzz.case import Case
from tests.fuzz.check import check, scheduled

FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))


@pytest.mark.parametrize("file", FOUND, ids=[f.stem for f in FOUND])
def test_stays_right(file: Path) -> None:
    """Steps that were legal by mistake are refused today, and are left out."""
    check(scheduled(Case.load(file), lenient=True)[2])


def test_a_partial_sum_is_not_initialised_again() -> None:
    case = Case.load(FOUND[[f.stem for f in FOUND].index("second_part_of_a_sum")])
    assert [step.primitive for step in scheduled(case, lenient=True)[2].trace] == ["peel"]
