"""JSON form of traces.

    {"format": "tilewright-trace", "version": 1, "steps": [
        {"primitive": "split", "args": {"loop": "i", "factor": 4, "names": ["i_o", "i_i"]}},
        {"primitive": "set_scope", "args": {"buffer": "C_local", "scope": "register"}}]}

The reader trusts nothing: it reports every problem of a file at once. A trace that was read is only a list of steps,
whose legality `replay` checks one by one. `schema()` describes the format; its text is docs/trace.schema.json.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.errors import Defect, TraceError
from tilewright.layout.json_document import DocumentReader, abbreviate, load_document
from tilewright.names import suggestion
from tilewright.schedule.arguments import bind_arguments, parameters
from tilewright.schedule.step import PRIMITIVES, Step, Trace, unknown_primitive

FORMAT = "tilewright-trace"
VERSION = 1

MAX_STEPS = 100_000
MAX_BYTES = 64 << 20
"""Limits of the reader, far beyond any schedule."""


def encode(trace: Trace) -> dict[str, Any]:
    """A trace as JSON values."""
    return {"format": FORMAT, "version": VERSION, "steps": [_encode_step(step) for step in trace]}


def dump(trace: Trace, path: "str | os.PathLike[str]") -> None:
    """Writes a trace to a file, one step per line."""
    Path(path).write_text(dumps(trace))


def dumps(trace: Trace) -> str:
    """A trace as JSON text, one step per line."""
    steps = ",\n".join(f"  {json.dumps(_encode_step(step))}" for step in trace)
    inner = f"\n{steps}\n" if steps else ""
    return f'{{"format": "{FORMAT}", "version": {VERSION}, "steps": [{inner}]}}\n'


def load(path: "str | os.PathLike[str]") -> Trace:
    """The trace in a file.

    Raises:
        TraceError: the file cannot be read or is no trace; lists every problem.
    """
    where = f"file '{os.fspath(path)}'"
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as e:
        raise TraceError([Defect("trace", "", f"can't be read: {e.strerror}")], where=where) from e
    return loads(data, where)


def loads(text: str | bytes, where: str = "trace") -> Trace:
    """The trace in JSON text.

    Raises:
        TraceError: the text is no trace; lists every problem.
    """
    return decode(load_document(text, MAX_BYTES, TraceError, where), where)


def decode(data: object, where: str = "trace") -> Trace:
    """The trace in JSON values.

    Raises:
        TraceError: the values are no trace; lists every problem.
    """
    reader = DocumentReader("trace")
    steps = _read_steps(data, reader)
    trace = tuple(_decode_step(number, step, reader) for number, step in enumerate(steps, 1))
    if reader.problems:
        raise TraceError(reader.problems, where=where)
    return tuple(step for step in trace if step is not None)


def schema() -> dict[str, Any]:
    """The JSON Schema of traces, derived from the primitives' signatures."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A schedule of Tilewright: primitives with their arguments, in the order in which they are applied.",
        "type": "object",
        "properties": {
            "format": {"const": FORMAT},
            "version": {"const": VERSION},
            "steps": {"type": "array", "maxItems": MAX_STEPS, "items": {"$ref": "#/$defs/step"}},
        },
        "required": ["format", "version", "steps"],
        "additionalProperties": False,
        "$defs": {
            "step": {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in sorted(PRIMITIVES)]},
            "layout": _LAYOUT,
            **{name: _step_schema(name) for name in sorted(PRIMITIVES)},
        },
    }


_LAYOUT: dict[str, Any] = {
    "description": "Logical shape, ranges of its symbols, and layout primitives with their arguments.",
    "type": "object",
    "properties": {
        "shape": {"type": "array", "items": {"type": ["integer", "string"]}},
        "symbols": {
            "type": "object",
            "additionalProperties": {
                "type": "array", "items": {"type": ["integer", "null"]}, "minItems": 2, "maxItems": 2,
            },
        },
        "primitives": {"type": "array", "items": {"type": "array", "prefixItems": [{"type": "string"}], "minItems": 1}},
    },
    "required": ["shape", "primitives"],
    "additionalProperties": False,
}  # fmt: skip


def _step_schema(name: str) -> dict[str, Any]:
    params = parameters(PRIMITIVES[name])
    sentence = " ".join((PRIMITIVES[name].__doc__ or "").split("\n\n")[0].split())
    args = {
        "type": "object",
        "properties": {p.name: p.kind.schema() for p in params.values()},
        "required": [p.name for p in params.values() if p.required],
        "additionalProperties": False,
    }
    return {
        "description": sentence,
        "type": "object",
        "properties": {"primitive": {"const": name}, "args": args},
        "required": ["primitive", "args"],
        "additionalProperties": False,
    }


def _encode_step(step: Step) -> dict[str, Any]:
    params = parameters(PRIMITIVES[step.primitive])
    arguments = ((params[name], value) for name, value in step.arguments.items())
    args = {p.name: p.kind.write(value) for p, value in arguments if p.required or value != p.default}
    return {"primitive": step.primitive, "args": args}


def _read_steps(data: object, reader: DocumentReader) -> list[Any]:
    """The steps of a file, as far as it has any, even where its header is wrong."""
    fields = reader.header(data, ("format", "version", "steps"), VERSION)
    if fields is None:
        return []
    steps = fields.get("steps")
    if not isinstance(steps, list):
        reader.report("steps", f"expected a list, got {abbreviate(steps)}")
        return []
    entries: list[Any] = steps
    if len(entries) > MAX_STEPS:
        reader.report("steps", f"expected at most {MAX_STEPS} steps, got {len(entries)}")
        return []
    return entries


def _decode_step(number: int, data: Any, reader: DocumentReader) -> Step | None:
    """One step, or None and problems."""
    where = f"step {number}"
    if not isinstance(data, dict) or set(data) - {"primitive", "args"} or "primitive" not in data:
        reader.report(where, f"expected an object with `primitive` and `args`, got {abbreviate(data)}")
        return None
    name: Any = data["primitive"]
    if not isinstance(name, str) or name not in PRIMITIVES:
        hint = suggestion(name, PRIMITIVES) if isinstance(name, str) else ""
        reader.report(where, unknown_primitive(name), hint)
        return None
    args: Any = data.get("args", {})
    if not isinstance(args, Mapping):
        reader.report(f"{where} ({name}), args", f"expected an object, got {abbreviate(args)}")
        return None
    step_problems: list[Defect] = []
    values = bind_arguments(PRIMITIVES[name], (), args, step_problems)
    for p in step_problems:
        place = f"{where} ({name}), {p.where}" if p.where else f"{where} ({name})"
        reader.report(place, p.what, p.hint)
    return None if step_problems else Step(name, values)
