"""Names of dynamic dimensions as users write them: the model's own, or `x[0]` for the unnamed axis 0 of an input x."""

import re
from collections.abc import Iterable, Mapping

from tilewright.errors import OptionError
from tilewright.graph.names import axis_name, identifier
from tilewright.names import suggestion

_ALL_FIXED = "all of its sizes are fixed; leave the option out"
_UNNAMED_AXIS = re.compile(r"(.+)\[(\d+)\]", re.DOTALL)


def resolve_dimensions(names: Iterable[str], dimensions: Iterable[str], option: str) -> Mapping[str, str]:
    """The dimensions of a model that names mean, by name.

    A name that is a dimension's own means that one; else `x_0`, as printed loops write it, means `x[0]`.

    Args:
        names: what a user wrote.
        dimensions: all dynamic dimensions, as they are shown.
        option: where the names were given, for errors.

    Raises:
        OptionError: a name means no dimension, or two names mean one.
    """
    shown = tuple(dimensions)
    identifiers = {_identifier(d): d for d in shown} | {d: d for d in shown}
    resolved: dict[str, str] = {}
    for name in names:
        if name not in identifiers:
            meant = suggestion(name, shown)
            hint = f"{meant} it has {', '.join(shown)}".lstrip() if shown else _ALL_FIXED
            raise OptionError(f"the model has no dynamic dimension {name!r}", where=option, hint=hint)
        dimension = identifiers[name]
        if dimension in resolved.values():
            raise OptionError(f"dimension {dimension!r} is given by two names", where=option, hint="keep one of them")
        resolved[name] = dimension
    return resolved


def _identifier(dimension: str) -> str:
    """The name of a dimension in printed loops."""
    axis = _UNNAMED_AXIS.fullmatch(dimension)
    return identifier(dimension if axis is None else axis_name(axis[1], int(axis[2])))
