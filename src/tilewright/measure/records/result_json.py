"""JSON form of results: times, failures and estimates."""

from collections.abc import Callable
from dataclasses import asdict, fields
from math import isfinite
from typing import Any, cast

from tilewright.layout.json_document import abbreviate
from tilewright.measure.records.record import Result
from tilewright.optimize.constructions import Estimate
from tilewright.optimize.measurer import Failure, FailureKind, Timing

MAX_NANOSECONDS = 1e15
"""Limit of times, eleven days."""

MAX_MESSAGE = 2000
"""Characters of a message that are kept."""

MAX_PROGRAMS = 64
"""Programs of a record, of which one runs at every call."""

_TIMING = {f.name for f in fields(Timing)}
_COUNTS, _FLAGS = {"blocks", "undisturbed"}, {"is_disturbed"}


def encode_result(result: Result) -> dict[str, Any]:
    """A result as JSON values."""
    if isinstance(result, Timing):
        return {"kind": "timing", **asdict(result)}
    if isinstance(result, Failure):
        return {"kind": "failure", "failure": str(result.kind), "message": result.message[:MAX_MESSAGE]}
    return {
        "kind": "estimate",
        "nanoseconds": list(result.nanoseconds[:MAX_PROGRAMS]),
        "refusal": result.refusal[:MAX_MESSAGE],
    }


def decode_result(data: dict[str, Any]) -> Result:
    """The result in JSON values that `read_result` has checked."""
    if data["kind"] == "timing":
        return Timing(**{n: data[n] for n in _TIMING})
    if data["kind"] == "failure":
        return Failure(FailureKind(data["failure"]), data["message"])
    return Estimate(tuple(map(float, data["nanoseconds"])), data["refusal"])


def read_result(data: Any, report: Callable[[str, str], None]) -> dict[str, Any] | None:
    """The JSON values of a result; None and a report where they are none."""
    kind = data.get("kind") if isinstance(data, dict) else None
    checks: dict[object, tuple[set[str], Callable[[dict[str, Any]], str]]] = {
        "timing": (_TIMING, _timing_problem),
        "failure": ({"failure", "message"}, _failure_problem),
        "estimate": ({"nanoseconds", "refusal"}, _estimate_problem),
    }
    if not isinstance(kind, str) or kind not in checks:
        report("result", f"expected an object whose kind is one of {', '.join(map(str, checks))}, {_got(data)}")
        return None
    names, find_problem = checks[kind]
    if data.keys() != names | {"kind"}:
        report("result", f"expected the fields {', '.join(sorted(names))}, got {', '.join(map(str, sorted(data)))}")
        return None
    if problem := find_problem(data):
        report("result", problem)
        return None
    return data


def _timing_problem(data: dict[str, Any]) -> str:
    for name in sorted(_TIMING):
        value = data[name]
        if name in _FLAGS:
            is_right = type(value) is bool
        elif name in _COUNTS:
            is_right = type(value) is int and 0 <= value <= 1 << 32
        elif name in ("spread", "others"):
            is_right = _is_number(value)
        else:
            is_right = (name == "incumbent" and value is None) or (_is_number(value) and value > 0)
        if not is_right:
            return f"{name} is impossible, {_got(value)}"
    return ""


def _failure_problem(data: dict[str, Any]) -> str:
    if data["failure"] not in tuple(FailureKind):
        return f"expected one of {', '.join(FailureKind)}, {_got(data['failure'])}"
    is_text = isinstance(data["message"], str) and len(data["message"]) <= MAX_MESSAGE
    return "" if is_text else f"expected a message of at most {MAX_MESSAGE} characters, {_got(data['message'])}"


def _estimate_problem(data: dict[str, Any]) -> str:
    times = data["nanoseconds"]
    is_list = isinstance(times, list) and len(cast(list[Any], times)) <= MAX_PROGRAMS
    if not is_list or not all(_is_number(t) for t in times):
        return f"expected a list of at most {MAX_PROGRAMS} nanoseconds, {_got(times)}"
    is_text = isinstance(data["refusal"], str) and len(data["refusal"]) <= MAX_MESSAGE
    return "" if is_text else f"expected a reason of at most {MAX_MESSAGE} characters, {_got(data['refusal'])}"


def _is_number(value: Any) -> bool:
    """Whether it is a number of nanoseconds or a ratio that can be."""
    return type(value) in (int, float) and isfinite(value) and 0 <= value <= MAX_NANOSECONDS


def _got(value: object) -> str:
    return f"got {abbreviate(value)}"
