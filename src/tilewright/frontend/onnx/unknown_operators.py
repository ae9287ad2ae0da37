"""Messages about operators that do not exist in the model's version of their domain."""

from difflib import get_close_matches

import onnx.defs

from tilewright.custom_operators import PYTHON_OPERATORS
from tilewright.frontend.onnx.expand_nodes import EXPANDED
from tilewright.ops.library import OPERATORS

_REGISTER_HINT = "register it with tilewright.register_operator"
_MIN_SIMILARITY = 0.8
"""Similarity from which a name counts as a misspelling of another; 1 is equality."""

_BLOCKED_LAYOUT_DOMAIN = "com.microsoft.nchwc"
"""The domain of operators on layouts whose blocks are those of one processor."""

_FUNCTION_HINT = "give the model a function of this name, or export it from standard operators"


def describe_unknown_operator(op_type: str, domain: str, version: int) -> tuple[str, str]:
    """The problem and a hint for an operator that does not exist in the imported version of its domain.

    Args:
        op_type: the operator's name.
        domain: of its operator set; "" is that of the standard operators.
        version: of the operator set.
    """
    shown = domain or "ai.onnx"
    if domain == _BLOCKED_LAYOUT_DOMAIN:
        what = f"operator '{op_type}' works on a layout of the machine that ONNX Runtime's optimizer ran on"
        return what, "save the model with ORT_ENABLE_EXTENDED, or give the original"
    onnx_names = {s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain}
    own_names = {name for other, name in _own_operators() if other == domain}
    what = f"operator '{op_type}' does not exist in version {version} of '{shown}'"
    if op_type in onnx_names:
        versions = [s.since_version for s in onnx.defs.get_all_schemas_with_history()
                    if (s.domain, s.name) == (domain, op_type)]  # fmt: skip
        return what, f"it exists from version {min(versions)} on: convert the model with onnx.version_converter"
    other_domains = sorted({other for other, name in _own_operators() if name == op_type}
                   | {s.domain for s in onnx.defs.get_all_schemas() if s.name == op_type})  # fmt: skip
    if other_domains:
        return (
            what,
            f"the domain {' and '.join(repr(d or 'ai.onnx') for d in other_domains)} has one: name it in the node",
        )
    close = get_close_matches(op_type, sorted(onnx_names | own_names), 1, _MIN_SIMILARITY)
    if close:
        return what, f"did you mean '{close[0]}'?"
    if onnx_names or own_names:
        listed = f"known there: {', '.join(sorted(onnx_names | own_names))}; " if domain else ""
        return what, f"{listed}{_FUNCTION_HINT}, or {_REGISTER_HINT}"
    domains = ", ".join(sorted(repr(d or "ai.onnx") for d in _known_domains()))
    expected = f"expected an operator of a known domain ({domains}) or a function of the model"
    what = f"{expected}, got '{op_type}' of '{shown}'"
    return what, f"{_FUNCTION_HINT}, or {_REGISTER_HINT}"


def _known_domains() -> set[str]:
    """The domains of ONNX's operators, of the definitions in `ops`, and of registered operators."""
    return {s.domain for s in onnx.defs.get_all_schemas()} | {domain for domain, _ in _own_operators()}


def _own_operators() -> set[tuple[str, str]]:
    """Operators that are defined in `ops`, registered, or expanded into others, by domain and name."""
    return {*OPERATORS, *PYTHON_OPERATORS, *EXPANDED}
