"""Results as a Markdown table with their circumstances, and their place between markers in `benchmarks/README.md`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

README = Path(__file__).resolve().parents[1] / "README.md"
RESULTS = Path(__file__).resolve().parents[1] / "results"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; vertical bars inside cells are escaped."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def section(circumstances: Mapping[str, str], summary: str, table: str) -> str:
    """Return the text that goes between the markers: circumstances, one-line summary, table."""
    facts = "\n".join(f"- {key}: {value}" for key, value in circumstances.items())
    return f"{facts}\n\n{summary}\n\n{table}"


def write_section(name: str, text: str, readme: Path = README) -> None:
    """Replace what stands between `<!-- name:begin -->` and `<!-- name:end -->`; raises ValueError without markers."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    content = readme.read_text()
    head, found_begin, rest = content.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"{readme.name} has no markers {begin} ... {end}")
    readme.write_text(f"{head}{begin}\n{text}\n{end}{tail}")


def write_json(path: Path, circumstances: Mapping[str, str], results: Mapping[str, Any]) -> None:
    """Write the complete results of one run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"circumstances": dict(circumstances), "models": dict(results)}, indent=1) + "\n")
