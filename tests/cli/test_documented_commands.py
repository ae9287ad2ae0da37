"""Commands in the documentation have the verbs and options of the command line."""

import re
from collections.abc import Iterator

import pytest
from tests.conventions.source import ROOT

from tilewright.cli import main

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])

COMMAND = re.compile(r"(?:\$ |`|^)tilewright ((?:[a-z]+ ?)+)([^`#\n]*)", re.MULTILINE)

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+|(?<=\s)-[a-z]\b")


def documented() -> Iterator[tuple[str, list[str], list[str]]]:
    """Page, words and flags of every command."""
    for page in PAGES:
        for words, rest in COMMAND.findall(page.read_text()):
            yield str(page.relative_to(ROOT)), words.split(), FLAG.findall(rest)


def help_of(capsys: pytest.CaptureFixture[str], *verb: str) -> str:
    """The help of a verb; empty where there is no such verb."""
    try:
        code = main([*verb, "--help"])
    except SystemExit as end:
        code = end.code
    return "" if code else capsys.readouterr().out


def test_documented_commands_exist(capsys: pytest.CaptureFixture[str]) -> None:
    texts: dict[tuple[str, ...], str] = {}
    problems: list[str] = []
    commands = list(documented())
    for page, words, flags in commands:
        verb = tuple(words[:2] if words[0] == "records" else words[:1])
        if verb not in texts:
            texts[verb] = help_of(capsys, *verb)
        options = set(FLAG.findall(texts[verb]))
        problems += [f"{page}: {' '.join(verb)} {flag}" for flag in flags if flag not in options]
        problems += [f"{page}: {' '.join(verb)}"] if not texts[verb] else []
    assert problems == []
    assert len(commands) > 60
    assert len(texts) > 12
