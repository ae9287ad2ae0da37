"""Layout plans as JSON, to be written or edited by hand: `docs/layouts.md`, schema in `docs/layouts.schema.json`.

{"format": 1, "variant": "full", "symbols": {"N": [1, 64]},
 "layouts": {"conv1": {"output": [["split", 1, [4, 16]], ["reorder", [0, 1, 3, 4, 2]]], "operands": [null]}}}
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from tilewright.errors import Defect, LayoutError, pluralize
from tilewright.expr.nodes import Var
from tilewright.expr.traversal import free_vars
from tilewright.graph.layouts.plan import Choice, Plan, Variant, unassigned_operators
from tilewright.graph.program import Program
from tilewright.layout.layout import Layout
from tilewright.layout.layout_json import encode_layout, parse_primitive, parse_symbols
from tilewright.layout.primitive import Primitive, Size
from tilewright.layout.primitives import PRIMITIVES
from tilewright.layout.strict_json import load_strict_json

FORMAT = 1
"""Version of the format."""

LayoutChoice = Layout | tuple[Primitive, ...] | None


def to_data(plan: Plan, program: Program | None = None) -> dict[str, Any]:
    """A plan as JSON values, with `Layout` objects as their primitives; `from_data` reads it back to an equal plan.

    Args:
        plan: the choices.
        program: if given, its operators without a choice are listed too, with null for every tensor.
    """
    choices = dict(plan.choices)
    if program is not None:
        choices |= {name: Choice(None, (None,) * count) for name, count in unassigned_operators(program, plan.choices)}
    listed = [x for c in choices.values() for x in (c.output, *c.operands)]
    symbols = {v for x in listed for p in _primitives(x) or () for v in _symbols_of(p)}
    return {
        "format": FORMAT,
        "variant": str(plan.variant),
        "symbols": {v.name: [v.lo, v.hi] for v in sorted(symbols, key=lambda v: v.name)},
        "layouts": {
            name: {"output": _encode_layout(c.output), "operands": [_encode_layout(x) for x in c.operands]}
            for name, c in choices.items()
        },
    }


def _primitives(chosen: LayoutChoice) -> tuple[Primitive, ...] | None:
    return chosen.primitives if isinstance(chosen, Layout) else chosen


def _encode_layout(chosen: LayoutChoice) -> list[Any] | None:
    primitives = _primitives(chosen)
    return None if primitives is None else encode_layout((), primitives, ())["primitives"]


def _symbols_of(primitive: Primitive) -> set[Var]:
    symbols: set[Var] = set()
    for f in fields(primitive):  # pyright: ignore[reportArgumentType] - every primitive is a dataclass
        value: Any = getattr(primitive, f.name)
        for n in cast(Sequence[Any], value if isinstance(value, tuple) else (value,)):
            symbols |= set() if isinstance(n, int | str) else set(free_vars(n))
    return symbols


def read_plan(path: Path) -> Plan:
    """The plan in a file.

    Raises:
        LayoutError: it cannot be read or has another format; lists every problem with the node that it is about.
    """
    where = f"layouts file '{path}'"
    try:
        data: object = load_strict_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LayoutError(f"cannot be read: {error.strerror}", where=where) from error
    except ValueError as error:
        raise LayoutError(f"is not JSON: {error}", where=where) from error
    return from_data(data, where)


def from_data(data: object, where: str = "layouts") -> Plan:
    """The plan that JSON values describe.

    Raises:
        LayoutError: they have another format; lists every problem with the node that it is about.
    """
    reader = _PlanReader()
    plan = reader.plan(data)
    if reader.problems:
        title = pluralize(len(reader.problems), "problem")
        listed = "".join(f"\n  {p.where}: {p.what}" for p in reader.problems)
        raise LayoutError(f"{title}{listed}", where=where, hint="see docs/layouts.md for the form")
    return plan


class _PlanReader:
    """Reads a plan and collects its problems."""

    def __init__(self) -> None:
        self.problems: list[Defect] = []

    def plan(self, data: object) -> Plan:
        """The plan, as far as it can be read."""
        entry = self._object(data, "plan", ("format", "variant", "symbols", "layouts"))
        version = entry.get("format")
        if type(version) is not int or version != FORMAT:  # True and 1.0 equal 1
            self._report("field 'format'", f"expected {FORMAT}, got {version!r}")
        variant = entry.get("variant", str(Variant.FULL))
        if variant not in list(Variant):
            self._report("field 'variant'", f"expected one of {', '.join(Variant)}, got {variant!r}")
            variant = Variant.FULL
        errors: list[LayoutError] = []
        symbols = parse_symbols(entry.get("symbols", {}), errors)
        self._report_all("field 'symbols'", errors)
        entries = entry.get("layouts")
        if not isinstance(entries, dict):
            self._report("field 'layouts'", f"expected an object with a choice per node, got {entries!r}")
            entries = {}
        choices = {name: self._choice(name, c, symbols) for name, c in cast(dict[str, Any], entries).items()}
        return Plan(choices, Variant(variant))

    def _choice(self, name: str, data: object, symbols: Mapping[str, Var]) -> Choice:
        node = f"node {name!r}"
        entry = self._object(data, node, ("output", "operands"))
        operands = entry.get("operands", [])
        if not isinstance(operands, list):
            self._report(f"{node}, operands", f"expected a list of layouts, got {operands!r}")
            operands = []
        output = self._layout(entry.get("output"), f"{node}, output", symbols)
        listed = enumerate(cast(list[Any], operands))
        return Choice(output, tuple(self._layout(x, f"{node}, operands[{k}]", symbols) for k, x in listed))

    def _layout(self, data: object, place: str, symbols: Mapping[str, Var]) -> tuple[Primitive, ...] | None:
        if data is None:
            return None
        if not isinstance(data, list):
            self._report(place, f"expected a list of primitives or null, got {data!r}")
            return None
        primitives: list[Primitive] = []
        errors: list[LayoutError] = []
        for k, step in enumerate(cast(list[Any], data)):
            primitive = parse_primitive(step, symbols, f"primitive {k}", errors)
            primitives += [] if primitive is None else [primitive]
        self._report_all(place, errors)
        return tuple(primitives)

    def _object(self, data: object, place: str, field_names: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(data, dict):
            self._report(place, f"expected an object, got {data!r}")
            return {}
        entry = cast(dict[str, Any], data)
        for name in sorted(entry.keys() - set(field_names)):
            self._report(place, f"there is no field {name!r}; fields are {', '.join(field_names)}")
        return entry

    def _report_all(self, place: str, errors: Sequence[LayoutError]) -> None:
        for error in errors:
            self._report(f"{place}, {error.where}", error.what)

    def _report(self, place: str, what: str) -> None:
        self.problems.append(Defect("layout", place, what))


def schema() -> dict[str, Any]:
    """JSON Schema of a plan, derived from the primitives' fields."""
    layout = {
        "description": "primitives in their order; null leaves the tensor as it is, [] asks for row-major",
        "type": ["array", "null"],
        "items": {"oneOf": [_primitive_schema(name) for name in sorted(PRIMITIVES)]},
    }
    end = {"type": ["integer", "null"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Layouts of the operators of a model",
        "type": "object",
        "required": ["format", "layouts"],
        "additionalProperties": False,
        "properties": {
            "format": {"const": FORMAT},
            "variant": {"enum": [str(v) for v in Variant]},
            "symbols": {
                "type": "object",
                "additionalProperties": {"type": "array", "prefixItems": [end, end], "minItems": 2, "maxItems": 2},
            },
            "layouts": {
                "type": "object",
                "additionalProperties": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "output": {"$ref": "#/$defs/layout"},
                        "operands": {"type": "array", "items": {"$ref": "#/$defs/layout"}},
                    },
                },
            },
        },
        "$defs": {"layout": layout, "size": {"type": ["integer", "string"]}},
    }


def _primitive_schema(name: str) -> dict[str, Any]:
    arguments = fields(PRIMITIVES[name])  # pyright: ignore[reportArgumentType] - every primitive is a dataclass
    items: list[dict[str, Any]] = [{"const": name}, *(_argument_schema(f.name, f.type) for f in arguments)]
    return {"title": name, "type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}


def _argument_schema(name: str, kind: Any) -> dict[str, Any]:
    size = {"$ref": "#/$defs/size"}
    if kind == Size:
        return {"title": name, **size}
    if kind == tuple[Size, ...]:
        return {"title": name, "type": "array", "items": size}
    if kind == tuple[int, ...]:
        return {"title": name, "type": "array", "items": {"type": "integer"}}
    return {"title": name, "type": "string" if kind is str else "integer"}
