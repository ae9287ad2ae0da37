"""Names that were replaced by terms of the glossary do not come back."""

from pathlib import Path

from tests.conventions.source import ROOT, has_words, identifiers, module_name, python_files

FOLDERS = ("src", "tests", "benchmarks")


def _table(name: str) -> dict[str, str]:
    lines = (Path(__file__).parent / name).read_text().splitlines()
    return dict(line.split() for line in lines if not line.startswith("#"))


IDENTIFIERS = _table("retired_identifiers.txt")
MODULES = _table("retired_modules.txt")


def _retired_identifiers(text: str) -> list[str]:
    if not has_words(text, IDENTIFIERS):
        return []
    return [f"{line}: {name} is now {IDENTIFIERS[name]}" for line, name in identifiers(text) if name in IDENTIFIERS]


def test_no_retired_identifier_is_used() -> None:
    used = [f"{p.relative_to(ROOT)}:{x}" for p in python_files(*FOLDERS) for x in _retired_identifiers(p.read_text())]
    assert used == []


def test_no_retired_module_exists() -> None:
    names = {module_name(path) for path in python_files(*FOLDERS)}
    assert sorted(names & MODULES.keys()) == []


def test_uses_of_retired_identifiers_are_found_in_code_alone() -> None:
    text = "x = 1  # crowding\ny = 'crowding'\nz = crowding(x)\n"
    assert _retired_identifiers(text) == [f"3: crowding is now {IDENTIFIERS['crowding']}"]
