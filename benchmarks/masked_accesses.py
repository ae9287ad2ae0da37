"""Masked loads and stores in LLVM's text, and whether each is known to have an active lane.

For an access of a vector register under a mask without active lanes an x86 processor takes hundreds of cycles where the
page is not present, each time. Code generation promises that there is none; this reads its text to see.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_ACCESS = re.compile(r'call .*@"llvm\.masked\.(load|store)\.[^"]*"\((.*)\)(.*)$')
_MASK = re.compile(r'<(\d+) x i1> (<[^>]*>|splat \([^)]*\)|%"[^"]*"|zeroinitializer)')
_VALUE = re.compile(r'\s*(%"[^"]*") = (.*)$')
_LABEL = re.compile(r'"?([\w.]+)"?:$')
_BRANCH = re.compile(r'\s*br i1 (%"[^"]*"), label %"([^"]*)"')
_SAFE_POINTER = re.compile(r'select\s+i1 (%"[^"]*"), ptr %"[^"]*", ptr @"tilewright_zeros"')
_POINTER = re.compile(r'ptr (%"[^"]*")')


@dataclass(frozen=True, slots=True)
class Access:
    """A masked load or store.

    Attributes:
        line: its text.
        bits: of the vector.
        reason: why a lane is active: "constant" mask, "marked" as known by code generation, or "asked" before it; empty
            where nothing says so.
    """

    line: str
    bits: int
    reason: str


def masked_accesses(text: str) -> Iterator[Access]:
    """The masked loads and stores in the text of a module, in their order."""
    values: dict[str, str] = {}
    conditions: dict[str, str] = {}
    block = ""
    for line in text.splitlines():
        if line.startswith("define"):
            values, conditions, block = {}, {}, ""
        elif match := _LABEL.match(line):
            block = match[1]
        elif match := _BRANCH.match(line):
            conditions[match[2]] = match[1]
        if match := _VALUE.match(line):
            values[match[1]] = match[2]
        if not line.startswith("declare") and (match := _ACCESS.search(line)):
            yield _classify_access(line.strip(), match, values, conditions.get(block, ""))


def _classify_access(line: str, match: re.Match[str], values: dict[str, str], condition: str) -> Access:
    kind, arguments, notes = match.groups()
    masks = list(_MASK.finditer(arguments))
    lanes, mask = (masks[0] if kind == "load" else masks[-1]).groups()
    element = re.search(rf"<{lanes} x (float|double|i\d+)> ", line.replace(f"<{lanes} x i1>", ""))
    width = {"float": 32, "double": 64}.get(element[1]) or int(element[1][1:]) if element else 0
    return Access(line, int(lanes) * width, _reason(kind, mask, arguments, notes, values, condition))


def _reason(kind: str, mask: str, arguments: str, notes: str, values: dict[str, str], condition: str) -> str:
    if not mask.startswith("%"):
        return "constant" if re.search(r"i1 (-?1|true)\b", mask) else ""
    if "!some_lane" in notes:
        return "marked"
    if kind == "store":
        return "asked" if _is_any_lane_test(condition, mask, values) else ""
    chosen = _SAFE_POINTER.match(values.get(_pointer(arguments), ""))
    return "asked" if chosen and _is_any_lane_test(chosen[1], mask, values) else ""


def _pointer(arguments: str) -> str:
    match = _POINTER.search(arguments)
    return match[1] if match else ""


def _is_any_lane_test(condition: str, mask: str, values: dict[str, str]) -> bool:
    """Whether a condition is that any lane of a mask is set."""
    compared = re.match(r'icmp ne i\d+ (%"[^"]*"), 0', values.get(condition, ""))
    asked = values.get(compared[1], "") if compared else ""
    return asked.startswith("bitcast") and f" {mask} to " in asked
