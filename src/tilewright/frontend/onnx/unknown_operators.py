"""What is said about a node whose operator does not exist where the model looks for it."""

from difflib import get_close_matches

import onnx.defs

from tilewright.ops.library import OPERATORS

_REGISTER_HINT = "register a definition of it with tilewright.ops.definition.operator"
_MIN_SIMILARITY = 0.8
"""How much a name must be like another to be taken for a slip of the pen; 1 is equal."""

_FUNCTION_HINT = "give the model a function of this name, or export it from standard operators"


def describe_unknown_operator(op_type: str, domain: str, version: int) -> tuple[str, str]:
    """What is wrong with an operator that does not exist in the version of its domain that the model imports, and what
    can be done about it.

    Args:
        op_type: the operator's name.
        domain: of its operator set; "" is that of the standard operators.
        version: of the operator set.
    """
    shown = domain or "ai.onnx"
    known = {s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain}
    ours = {name for place, name in OPERATORS if place == domain}
    what = f"operator '{op_type}' does not exist in version {version} of '{shown}'"
    if op_type in known:
        versions = [s.since_version for s in onnx.defs.get_all_schemas_with_history()
                    if (s.domain, s.name) == (domain, op_type)]  # fmt: skip
        return what, f"it exists from version {min(versions)} on: convert the model with onnx.version_converter"
    homes = sorted({place for place, name in OPERATORS if name == op_type}
                   | {s.domain for s in onnx.defs.get_all_schemas() if s.name == op_type})  # fmt: skip
    if homes:
        return what, f"the domain {' and '.join(repr(d or 'ai.onnx') for d in homes)} has one: name it in the node"
    close = get_close_matches(op_type, sorted(known | ours), 1, _MIN_SIMILARITY)
    if close:
        return what, f"did you mean '{close[0]}'?"
    if known or ours:
        listed = f"known there: {', '.join(sorted(known | ours))}; " if domain else ""
        return what, f"{listed}{_FUNCTION_HINT}, or {_REGISTER_HINT}"
    domains = ", ".join(sorted(repr(d or "ai.onnx") for d in _known_domains()))
    expected = f"expected an operator of a known domain ({domains}) or a function of the model"
    what = f"{expected}, got '{op_type}' of '{shown}'"
    return what, f"{_FUNCTION_HINT}, or {_REGISTER_HINT}"


def _known_domains() -> set[str]:
    """The domains that have operators: ONNX's own, and those of definitions."""
    return {s.domain for s in onnx.defs.get_all_schemas()} | {domain for domain, _ in OPERATORS}
