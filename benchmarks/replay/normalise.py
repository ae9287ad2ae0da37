"""Generated code without the names that the compiler chose: two texts that differ in names alone become equal.

Names are numbered in the order in which they first appear: those of LLVM's values and labels per function, its globals
per module, loops, blocks and buffers per trace. What is declared and not defined keeps its name (intrinsics, OpenMP,
libm), and so does every word that has a meaning: primitives, their parameters, scopes, tails.
"""

import ast
import re
from collections.abc import Iterable, Sequence
from typing import Any

Manifest = dict[str, Any]
"""A manifest as it stands in a file."""

WORDS = frozenset([
    "memory", "stack", "register", "guard", "mask", "remainder", "shift_inwards", "pad",
    "block_x", "block_y", "block_z", "thread_x", "thread_y", "thread_z",
    "min", "max", "select", "and", "or", "not", "true", "false",
    "float16", "bfloat16", "float32", "float64", "bool", "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64",
])  # fmt: skip
"""Texts in traces that name no loop, block, buffer or symbol."""

_NAME = r'(?:"(?:[^"\\]|\\.)*"|[-\w.$]+)'
_TOKEN = re.compile(rf'(?P<data>\bc"(?:[^"\\]|\\.)*")|(?P<sigil>[%@]){_NAME}|!"(?P<text>(?:[^"\\]|\\.)*)"')
_LABEL = re.compile(rf"^({_NAME}):(?=\s|$)")
_DECLARED = re.compile(rf"^declare\b[^@]*@({_NAME})")
_DEFINED = re.compile(rf"^define\b[^@]*@({_NAME})")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


class Numbers:
    """New names, in the order in which the old ones are first asked for."""

    def __init__(self, prefix: str) -> None:
        self._prefix, self._known = prefix, dict[str, str]()

    def of(self, name: str) -> str:
        """The new name of an old one, always the same."""
        return self._known.setdefault(name, f"{self._prefix}{len(self._known)}")


def llvm_lines(text: str) -> list[str]:
    """The lines of LLVM IR text with names as numbers; there are as many as before."""
    lines = text.splitlines()
    declared = {_bare(m[1]) for line in lines if (m := _DECLARED.match(line))}
    names, texts, values = Numbers("@g"), Numbers("text"), Numbers("%v")

    def renamed(match: re.Match[str]) -> str:
        if match["data"] is not None:
            return match[0]
        if match["text"] is not None:
            text = match["text"]
            return match[0] if _is_known(text) else f'!"{texts.of(text)}"'
        name = _bare(match[0][1:])
        if match["sigil"] == "%":
            return values.of(name)
        return f"@{name}" if name in declared else names.of(name)

    result: list[str] = []
    for line in lines:
        if line.startswith(("define", "declare")):
            values = Numbers("%v")
        if (label := _LABEL.match(line)) is not None:
            result.append(f"{values.of(_bare(label[1]))}:{line[label.end() :]}")
        else:
            result.append(_TOKEN.sub(renamed, line))
    return result


def functions(text: str) -> list[tuple[str, int]]:
    """The names of the functions that LLVM IR text defines, with the number of the line where each begins."""
    return [(_bare(m[1]), k) for k, line in enumerate(text.splitlines()) if (m := _DEFINED.match(line))]


def shape_of(line: str) -> str:
    """A normalised line without the numbers of its names, by which lines of two texts are paired."""
    return re.sub(r"(%v|@g)\d+", r"\1", line)


def _is_known(text: str) -> bool:
    """Whether a text in metadata has a meaning to LLVM."""
    return text.startswith("llvm.") or text in ("branch_weights", "function_entry_count", "unknown")


def _bare(name: str) -> str:
    return name[1:-1] if name.startswith('"') else name


def trace_lines(steps: Iterable[str]) -> list[str]:
    """The steps of one trace with names as numbers; primitives, parameters, sizes and `WORDS` stay."""
    names = Numbers("n")
    return [_step(step, names) for step in steps]


def _step(step: str, names: Numbers) -> str:
    try:
        tree = ast.parse(step, mode="eval")
    except SyntaxError:
        return step
    return ast.unparse(_Renamed(names).visit(tree))


class _Renamed(ast.NodeTransformer):
    """Renames inside of texts: each is a name, or an expression over names."""

    def __init__(self, names: Numbers) -> None:
        self._names = names

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if not isinstance(node.value, str):
            return node
        return ast.Constant(_IDENTIFIER.sub(lambda m: m[0] if m[0] in WORDS else self._names.of(m[0]), node.value))


def weight_names(manifest: Manifest) -> dict[str, str]:
    """New names of an artifact's weights, in the order in which its steps use them."""
    names = Numbers("weight")
    return {old: names.of(old) for step in manifest["steps"] for old in _weights_of(step)}


def _weights_of(step: dict[str, Any]) -> Sequence[str]:
    return step["weights"] if step["kind"] == "native" else [step["model"]]


def neutral_manifest(manifest: Manifest) -> Manifest:
    """A manifest without how it was built, without hashes of what is compared by itself, with weights as numbers."""
    names = weight_names(manifest)
    kept = {k: v for k, v in manifest.items() if k not in ("build", "code", "weights", "code_bytes", "weight_bytes")}
    kept["steps"] = [
        step | ({"weights": [names[w] for w in step["weights"]]} if step["kind"] == "native"
                else {"model": names[step["model"]]})
        for step in manifest["steps"]
    ]  # fmt: skip
    return kept
