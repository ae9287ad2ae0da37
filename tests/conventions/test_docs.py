"""Documentation: links lead to files, and the glossary is sorted and names what exists."""

import re
from pathlib import Path

import pytest
from tests.conventions.source import ROOT, identifiers

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
GLOSSARY = ROOT / "docs" / "glossary.md"
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(?:#[^)]*)?\)")


def _links(page: Path) -> list[tuple[str, Path]]:
    links = LINK.findall(page.read_text())
    return [(text, page.parent / target) for text, target in links if "://" not in target]


def _entries() -> list[str]:
    rows = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")]
    return [row.split("|")[1].strip() for row in rows[1:]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    assert [str(target) for _, target in _links(page) if not target.exists()] == []


def test_source_files_that_pages_name_exist() -> None:
    """By their names, with as much of their path as is given; the changelog names what was."""
    paths = [str(path.relative_to(ROOT)) for folder in ("src", "tests", "benchmarks", "examples")
             for path in (ROOT / folder).rglob("*.py")]  # fmt: skip
    ends = {path[k:] for path in paths for k in range(len(path)) if not k or path[k - 1] == "/"}
    named = [
        (page, name)
        for page in PAGES
        if page.name != "CHANGELOG.md"
        for name in re.findall(r"[\w/]*\w\.py\b", page.read_text())
    ]
    assert len(named) > 300
    assert [f"{page.relative_to(ROOT)}: {name}" for page, name in named if name.removeprefix("/") not in ends] == []


def test_glossary_is_sorted_and_has_one_entry_per_term() -> None:
    terms = [re.sub(r"[`*]", "", term).lower() for term in _entries()]
    assert len(terms) > 50
    assert terms == sorted(set(terms))


def test_identifiers_of_the_glossary_are_defined_in_the_linked_file() -> None:
    linked = [(text.strip("`"), path) for text, path in _links(GLOSSARY) if text.startswith("`") and "." not in text]
    assert len(linked) > 20
    assert [
        f"{name} in {path.name}"
        for name, path in linked
        if path.suffix == ".py" and name not in {word for _, word in identifiers(path.read_text())}
    ] == []


def test_the_package_is_installed_from_files() -> None:
    """It is on no index, where its name may be another's."""
    texts = [*PAGES, *(ROOT / "src").rglob("*.py")]
    named = re.compile(r"pip install [^`\n]*\btilewright(?!-)\b")
    assert [str(path.relative_to(ROOT)) for path in texts if named.search(path.read_text())] == []
