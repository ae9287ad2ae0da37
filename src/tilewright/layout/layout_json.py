"""Layouts as JSON: sizes are numbers or texts of expressions, symbols carry their ranges.

{"shape": ["N", 64], "symbols": {"N": [1, 512]}, "primitives": [["split", 1, [4, 16]], ["reorder", [1, 0, 2]]]}
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

from tilewright.errors import LayoutError
from tilewright.expr.nodes import Const, Expr, Symbol, Var
from tilewright.layout.primitive import Primitive, Shape, Size, as_shape
from tilewright.layout.primitives import PRIMITIVES
from tilewright.layout.sizes import MAX_INTEGER, WrongSizeError, check_size, parse_size


def encode_layout(shape: Shape, primitives: Sequence[Primitive], symbols: Sequence[Var]) -> dict[str, Any]:
    """A layout as JSON values."""
    return {
        "shape": [_encode_value(n) for n in shape],
        "symbols": {v.name: [v.lo, v.hi] for v in symbols},
        "primitives": [[p.name, *(_encode_value(getattr(p, f.name)) for f in fields(p))] for p in primitives],  # pyright: ignore
    }


def _encode_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_encode_value(v) for v in value]
    if isinstance(value, Const):
        return value.value
    return str(value) if isinstance(value, Expr) else value


def decode_layout(data: Any) -> tuple[Shape, tuple[Primitive, ...]]:
    """Shape and primitives of a layout.

    Raises:
        LayoutError: the data has another format.
    """
    if not isinstance(data, dict):
        raise _mismatch("an object", data, "layout")
    fields_by_name: dict[Any, Any] = data
    unknown = sorted(map(str, fields_by_name.keys() - {"shape", "symbols", "primitives"}))
    if unknown:
        raise LayoutError(f"expected shape, symbols and primitives, got {unknown[0]!r}", where="layout")
    symbols = decode_symbols(fields_by_name.get("symbols", {}))
    shape = _sizes(fields_by_name.get("shape"), symbols, "shape")
    steps = _list(fields_by_name.get("primitives"), "primitives")
    return as_shape(shape), tuple(decode_primitive(s, symbols, f"primitive {k}") for k, s in enumerate(steps))


def decode_symbols(data: Any) -> dict[str, Var]:
    """Symbols with their ranges, by name.

    Raises:
        LayoutError: the data has another format.
    """
    problems: list[LayoutError] = []
    symbols = parse_symbols(data, problems)
    if problems:
        raise problems[0]
    return symbols


def parse_symbols(data: Any, problems: list[LayoutError]) -> dict[str, Var]:
    """Symbols with their ranges, by name; errors are appended to `problems`, and such a symbol has no range."""
    symbols: dict[str, Var] = {}
    if not isinstance(data, dict):
        problems.append(_mismatch("an object", data, "symbols"))
        return symbols
    ranges: dict[Any, Any] = data
    for name, ends in ranges.items():
        problem = _range_error(ends, f"symbol {name!r}")
        problems += [problem] if problem else []
        symbols[str(name)] = Var(str(name)) if problem else Symbol(str(name), *ends)
    return symbols


def _range_error(ends: Any, where: str) -> LayoutError | None:
    """What is wrong with the range of a symbol, None where it is valid."""
    if not isinstance(ends, list) or len(values := cast(list[Any], ends)) != 2:
        return _mismatch("two integers or null", ends, where)
    if not all(n is None or _is_int(n) for n in values):
        return _mismatch("two integers or null", ends, where)
    if any(n is not None and n > MAX_INTEGER for n in values):
        return _mismatch(f"ends of at most {MAX_INTEGER}", ends, where)
    if any(n is not None and n < 0 for n in values):
        return _mismatch("ends of at least 0", ends, where)
    if None not in values and values[0] > values[1]:
        return _mismatch("a lower end that is not above the upper one", ends, where)
    return None


def decode_primitive(data: Any, symbols: Mapping[str, Var], where: str) -> Primitive:
    """A primitive from its name and arguments.

    Raises:
        LayoutError: the data has another format.
    """
    problems: list[LayoutError] = []
    primitive = parse_primitive(data, symbols, where, problems)
    if primitive is None:
        raise problems[0]
    return primitive


def parse_primitive(data: Any, symbols: Mapping[str, Var], where: str, problems: list[LayoutError]) -> Primitive | None:
    """A primitive from its name and arguments, None where the data has another format.

    Args:
        data: a list of the name and the arguments.
        symbols: that expressions may refer to.
        where: the place of the data, for messages.
        problems: errors are appended here, also those of arguments that are legal on no shape.
    """
    try:
        cls = _primitive_class(data, where)
    except LayoutError as error:
        problems.append(error)
        return None
    arguments: list[Any] = []
    count_before = len(problems)
    for f, value in zip(fields(cls), data[1:], strict=True):  # pyright: ignore[reportArgumentType]
        try:
            arguments.append(_argument(f.type, value, symbols, f"{where}, {f.name} of {cls.name}"))
        except LayoutError as error:
            problems.append(error)
    if len(problems) > count_before:
        return None
    primitive = cls(*arguments)
    problems += [
        LayoutError(what, where=f"{where}, {name} of {cls.name}") for name, what in primitive.invalid_arguments()
    ]
    return primitive


def _primitive_class(data: Any, where: str) -> type[Primitive]:
    """The class of the named primitive, whose number of arguments is checked."""
    values = _list(data, where)
    name = values[0] if values else None
    if not isinstance(name, str) or name not in PRIMITIVES:
        raise LayoutError(f"there is no primitive {name!r}; there are {', '.join(sorted(PRIMITIVES))}", where=where)
    expected = fields(PRIMITIVES[name])  # pyright: ignore[reportArgumentType]
    if len(values) - 1 != len(expected):
        signature = ", ".join(f.name for f in expected)
        raise LayoutError(f"expected {name}({signature}), got {len(values) - 1} arguments", where=where)
    return PRIMITIVES[name]


def _argument(kind: Any, value: Any, symbols: Mapping[str, Var], where: str) -> Any:
    """An argument of the type of the primitive's field."""
    if kind == Size:
        return _size(value, symbols, where)
    if kind == tuple[Size, ...]:
        return _sizes(value, symbols, where)
    if kind == tuple[int, ...]:
        return tuple(_integer(v, where) for v in _list(value, where))
    if kind is str:
        return _name(value, where)
    return _integer(value, where)


def _name(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _mismatch("a name", value, where)
    return value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _integer(value: Any, where: str) -> int:
    if not _is_int(value):
        raise _mismatch("an integer", value, where)
    if abs(value) > MAX_INTEGER:
        raise _mismatch(f"an integer of at most {MAX_INTEGER}", value, where)
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _mismatch("a list", value, where)
    return value


def _sizes(value: Any, symbols: Mapping[str, Var], where: str) -> tuple[Size, ...]:
    return tuple(_size(v, symbols, where) for v in _list(value, where))


def _size(value: Any, symbols: Mapping[str, Var], where: str) -> Size:
    try:
        return check_size(parse_size(value, symbols) if isinstance(value, str) else value)
    except WrongSizeError as error:
        raise _mismatch(str(error), value, where) from None


def _mismatch(expected: str, got: Any, where: str) -> LayoutError:
    shown = repr(got)
    return LayoutError(f"expected {expected}, got {shown if len(shown) <= 80 else f'{shown[:77]}...'}", where=where)
