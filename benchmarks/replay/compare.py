"""Two records of one case side by side: which part differs first, in which kernel, and a short difference."""

from collections.abc import Sequence
from difflib import SequenceMatcher, unified_diff

from benchmarks.replay.normalise import functions, llvm_lines, shape_of, trace_lines
from benchmarks.replay.record import PARTS, Record, digest

_LINES = 24
"""Lines of a difference that are shown."""

_CONTEXT = 3


def differing(base: dict[str, str], here: dict[str, str]) -> list[str]:
    """The parts whose hashes differ."""
    return [part for part in PARTS if base[part] != here[part]]


def explained(base: Record, here: Record, parts: Sequence[str]) -> str:
    """What differs, for people: the parts, the first kernel, and lines of both sides with their own names."""
    lines = [f"  differs in {', '.join(parts)}"]
    match parts[0]:
        case "error":
            lines += [f"    base: {base.message or 'compiles'}", f"    here: {here.message or 'compiles'}"]
        case "kernels":
            lines += _kernels(base, here)
            lines += _llvm(base, here) if "llvm" in parts else []
        case "llvm":
            lines += _llvm(base, here)
        case other:
            lines += _plain(getattr(base, other), getattr(here, other))
    return "\n".join(lines)


def _kernels(base: Record, here: Record) -> list[str]:
    """The first kernel whose optimizer or trace differs."""
    pairs = list(zip(base.kernels, here.kernels, strict=False))
    counts = len(base.kernels), len(here.kernels)
    lines = [f"  {counts[0]} kernels, here {counts[1]}"] if counts[0] != counts[1] else []
    for k, (a, b) in enumerate(pairs):
        old, new = [a.optimizer, *trace_lines(a.steps)], [b.optimizer, *trace_lines(b.steps)]
        if old != new:
            name = b.name if a.name == b.name else f"{a.name}, here {b.name}"
            lines.append(f"  trace of kernel {k} ({name})")
            return lines + _lines([a.optimizer, *a.steps], [b.optimizer, *b.steps], old, new)
    return lines


def _llvm(base: Record, here: Record) -> list[str]:
    """The first function of LLVM IR that differs."""
    old, new = _functions(base.llvm), _functions(here.llvm)
    for k, (a, b) in enumerate(zip(old, new, strict=False)):
        if a[2] != b[2]:
            name = b[0] if a[0] == b[0] else f"{a[0]}, here {b[0]}"
            return [f"  LLVM IR of function {k} ({name})", *_lines(a[1], b[1], a[2], b[2])]
    return [f"  {len(old)} functions of LLVM IR, here {len(new)}"]


def _functions(text: str) -> list[tuple[str, list[str], list[str]]]:
    """The functions of a module with what stands before the first: name, lines, lines without names."""
    raw, plain = text.splitlines(), llvm_lines(text)
    starts = [("module", 0), *functions(text)]
    ends = [at for _, at in starts[1:]] + [len(raw)]
    return [(name, raw[a:b], plain[a:b]) for (name, a), b in zip(starts, ends, strict=True)]


def _lines(old: Sequence[str], new: Sequence[str], plain_old: Sequence[str], plain_new: Sequence[str]) -> list[str]:
    """A difference of two texts, by what their lines are without names, printed with the names of each."""
    a, b = [shape_of(x) for x in plain_old], [shape_of(x) for x in plain_new]
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    shown: list[str] = []
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        shown.append(f"@@ line {group[0][1] + 1}, here {group[0][3] + 1} @@")
        for tag, i, j, k, m in group:
            shown += [f" {x}" for x in new[k:m]] if tag == "equal" else []
            shown += [f"-{x}" for x in old[i:j]] if tag != "equal" else []
            shown += [f"+{x}" for x in new[k:m]] if tag != "equal" else []
    if not shown:
        at = next(k for k, (x, y) in enumerate(zip(plain_old, plain_new, strict=True)) if x != y)
        shown = [f"@@ line {at + 1}: other names are the same @@", f"-{old[at]}", f"+{new[at]}"]
    return _indented(shown)


def _plain(old: Sequence[str], new: Sequence[str]) -> list[str]:
    return _indented(list(unified_diff(old, new, lineterm="", n=_CONTEXT))[2:])


def _indented(lines: Sequence[str]) -> list[str]:
    rest = len(lines) - _LINES
    return [f"    {x}" for x in lines[:_LINES]] + ([f"    ... {rest} more lines"] if rest > 0 else [])


def fingerprint(record: Record) -> dict[str, str]:
    """Short hashes of what does not depend on LLVM's version: every kernel's trace, by position, and the LLVM IR."""
    found = {f"trace {k}": digest([x.optimizer, *trace_lines(x.steps)]) for k, x in enumerate(record.kernels)}
    return {name: value[:16] for name, value in {**found, "llvm": digest(llvm_lines(record.llvm))}.items()}
