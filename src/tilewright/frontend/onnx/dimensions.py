"""Dynamic dimensions of a model's inputs: names, ranges, and the user's options for them.

Equal names mean equal sizes. Unnamed dimensions, negative sizes and placeholders that exporters write for "any size"
(`?`, `-1`, `None`, ...) are independent of each other; they are named after the input and the axis.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.errors import OptionError, pluralize
from tilewright.expr.dtype import DType
from tilewright.expr.nodes import Expr, Symbol, Var, const
from tilewright.graph.ir import TensorType, Value
from tilewright.graph.names import axis_name, identifier
from tilewright.graph.solve_symbols import MAX_SIZE
from tilewright.names import suggestion, underscored_name

ShapeOption = str | int | Sequence["str | int | tuple[int | None, int | None] | None"]
"""Values of the `shapes` argument for one dimension, or for all dimensions of one input."""

_MAX_SIZE = 2**31 - 1
_PLACEHOLDER = re.compile(r"[\W_]*|-?\d+|none|null|nan|unk|unknown|dynamic|any", re.IGNORECASE)
_SIZE = re.compile("[0-9]{1,100}")
_RANGE = re.compile(r"([0-9]{0,100})\s*\.\.\s*([0-9]{0,100})")
_AXIS = re.compile(r"(.+)\[(-?[0-9]{1,9})\]", re.DOTALL)
_OPTION_LOCATION = "argument 'shapes'"
_FIXED_HINT = "{}, or export the model with a name (dim_param) in place of this size"


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input as the model declares it.

    Attributes:
        name: of the input.
        dtype: element type.
        dims: a dimension is a size, a name, or None; None for unknown rank.
        may_be_empty: whether dynamic dimensions without a declared range start at size 0 rather than 1, as no native
            code gains from the latter.
    """

    name: str
    dtype: DType
    dims: tuple[int | str | None, ...] | None
    may_be_empty: bool = False


@dataclass(frozen=True, slots=True)
class SymbolicInputs:
    """Inputs with symbolic dimensions; see `Graph`."""

    values: tuple[Value, ...]
    symbols: tuple[Var, ...]
    symbol_names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _DimOption:
    """The user's option for one dimension: a range, a name, both or neither."""

    lo: int | None = None
    hi: int | None = None
    name: str | None = None

    @property
    def is_fixed(self) -> bool:
        return self.lo is not None and self.lo == self.hi

    def __str__(self) -> str:
        if self.is_fixed:
            return str(self.lo)
        return f"{'' if self.lo is None else self.lo}..{'' if self.hi is None else self.hi}"


def parse_shape_options(options: Sequence[str]) -> dict[str, ShapeOption]:
    """The `shapes` argument from command-line texts "batch:1..64" and "x:1x3x32..960x*".

    Raises:
        OptionError: a text is not `name:value`, or a name occurs twice.
    """
    result: dict[str, ShapeOption] = {}
    for option in options:
        # Names of tensors may contain colons ("input:0"), values do not.
        name, colon, value = option.rpartition(":")
        if not colon or not name or not value:
            raise OptionError(f"expected NAME:SIZES, got {option!r}", where="--shape", hint="e.g. --shape batch:1..64")
        if name in result:
            raise OptionError(f"{name!r} is given twice", where="--shape")
        result[name] = value
    return result


def make_inputs(specs: Sequence[InputSpec], shapes: Mapping[str, ShapeOption]) -> SymbolicInputs:
    """Inputs over symbols, with the user's sizes and ranges applied.

    Raises:
        OptionError: `shapes` refers to nothing in the model, contradicts the model or itself, or cannot be parsed.
    """
    return _Dimensions(specs).apply_options(shapes).make_inputs()


class _Dimensions:
    """The dimensions of all inputs while options are applied.

    `keys` has the key of every dynamic dimension by (input, axis); `unified` maps a key to the key that replaced it.
    """

    def __init__(self, specs: Sequence[InputSpec]) -> None:
        self.specs = list(specs)
        self.options: dict[str, _DimOption] = {}
        self.display_names: dict[str, str] = {}
        self.unified: dict[str, str] = {}
        self.keys: dict[tuple[str, int], str] = {}
        for spec in specs:
            for axis, dim in enumerate(spec.dims or ()):
                self._add(spec.name, axis, dim, spec.may_be_empty)

    def _add(self, name: str, axis: int, dim: int | str | None, may_be_empty: bool) -> None:
        if isinstance(dim, int) and dim > 0:
            return
        if isinstance(dim, str) and not _PLACEHOLDER.fullmatch(dim):
            key, shown = dim, dim
        else:
            key, shown = underscored_name(axis_name(name, axis), self.display_names), f"{name}[{axis}]"
        self.keys[name, axis] = key
        self.display_names[key] = shown
        # Some exporters write 0 for "unknown"; an empty tensor remains possible.
        least = 0 if dim == 0 or may_be_empty else 1
        self.options[key] = _DimOption(
            max(least, self.options[key].lo or 0) if key in self.options else least, MAX_SIZE
        )

    def apply_options(self, shapes: Mapping[str, ShapeOption]) -> "_Dimensions":
        """Applies all of the user's options; returns the object itself."""
        applied: dict[str, _DimOption] = {}
        for name, option in shapes.items():
            spec = next((s for s in self.specs if s.name == name), None)
            entries = _entries(option)
            if entries is None and isinstance(option, tuple) and spec is not None and len(spec.dims or ()) == 2:
                # a range of what has two dimensions and no name of one: it is a size of each
                entries = option if self._key(name) is None else None
            if spec is not None and (entries is not None or (self._key(name) is None and len(spec.dims or ()) == 1)):
                self._apply_to_input(spec, [self._check_sized(option, name)] if entries is None else entries, applied)
            elif (key := self._key(name)) is not None:
                if entries is not None:
                    raise OptionError(
                        f"expected one size or range for dimension '{name}', got {option!r}", where=_OPTION_LOCATION
                    )
                self._apply(key, _parse_option(self._check_sized(option, name), name), applied)
            elif spec is not None:
                raise OptionError(
                    f"expected {_dim_count(spec)} for input '{name}', got {option!r}",
                    where=_OPTION_LOCATION,
                    hint="e.g. '1x3x32..960x*'",
                )
            else:
                raise self._axis_error(name, option) or self._unknown_name_error(name)
        return self

    def _check_sized(self, option: ShapeOption, shown: str) -> ShapeOption:
        """The option of one dimension, which must state a size or a known name: a typing error is not a new name."""
        parsed = _parse_option(option, shown)
        if parsed.name is not None and (parsed.lo, parsed.hi) == (None, None) and self._key(parsed.name) is None:
            raise OptionError(
                f"{option!r} is neither a size or range nor a dimension of the model",
                where=f"{_OPTION_LOCATION}, dimension '{shown}'",
                hint="use a size (8), a range ('1..64'), '*', or the name of a dimension of equal size",
            )
        return option

    def _key(self, name: str) -> str | None:
        for key, shown in self.display_names.items():
            if name in (key, shown, identifier(key)):
                return self._root(key)
        return None

    def _root(self, key: str) -> str:
        while key in self.unified:
            key = self.unified[key]
        return key

    def _unknown_name_error(self, name: str) -> OptionError:
        dims, inputs = tuple(self.display_names.values()), tuple(s.name for s in self.specs)
        meant, shown = suggestion(name, (*dims, *inputs)), (", ".join(names) or "none" for names in (dims, inputs))
        hint = "{} its dynamic dimensions are: {}; its inputs are: {}".format(meant, *shown).lstrip()
        return OptionError(f"the model has no dimension or input '{name}'", where=_OPTION_LOCATION, hint=hint)

    def _axis_error(self, name: str, option: ShapeOption) -> OptionError | None:
        """What is wrong with a name `x[2]` of an input x that is not the name of a dimension; None for other names."""
        match = _AXIS.fullmatch(name)
        spec = None if match is None else next((s for s in self.specs if s.name == match[1]), None)
        if match is None or spec is None:
            return None
        axis, rank = int(match[2]), len(spec.dims or ())
        if spec.dims is None:
            what = f"the model does not say how many dimensions input '{spec.name}' has"
            hint = f"give all of them for '{spec.name}', such as '1x3x32..960x*'"
            return OptionError(what, where=_OPTION_LOCATION, hint=hint)
        if not 0 <= axis < rank:
            hint = f"count from 0: its last one is {spec.name}[{rank - 1}]" if rank else "leave the option out"
            what = f"input '{spec.name}' has {_dim_count(spec)}, no '{name}'"
            return OptionError(what, where=_OPTION_LOCATION, hint=hint)
        if (spec.name, axis) in self.keys:
            shown = self.display_names[self.keys[spec.name, axis]]
            what = f"'{name}' is the dimension '{shown}'"
            return OptionError(what, where=_OPTION_LOCATION, hint=f"name it '{shown}'")
        return _fixed_size_error(spec, axis, str(option), "leave it out")

    def _apply_to_input(self, spec: InputSpec, entries: Sequence[object], applied: dict[str, _DimOption]) -> None:
        if spec.dims is None:
            dims = (None,) * len(entries)
            self.specs[self.specs.index(spec)] = spec = InputSpec(spec.name, spec.dtype, dims, spec.may_be_empty)
            for axis in range(len(dims)):
                self._add(spec.name, axis, None, spec.may_be_empty)
        dims = spec.dims or ()
        if len(entries) != len(dims):
            raise OptionError(
                f"expected {_dim_count(spec)} for input '{spec.name}', got {len(entries)}", where=_OPTION_LOCATION
            )
        for axis, (dim, entry) in enumerate(zip(dims, entries, strict=True)):
            parsed = _parse_option(entry, f"{spec.name}[{axis}]")
            if (spec.name, axis) in self.keys:
                self._apply(self._root(self.keys[spec.name, axis]), parsed, applied)
            elif parsed.name is not None or (parsed.lo, parsed.hi) not in ((None, None), (dim, dim)):
                raise _fixed_size_error(spec, axis, parsed.name or str(parsed), f"give {dim}")

    def _apply(self, key: str, option: _DimOption, applied: dict[str, _DimOption]) -> None:
        if option.name is not None:
            key = self._unify(key, option.name, applied)
        if option.lo is None and option.hi is None:
            return
        old = self.options[key]
        new = _DimOption(old.lo if option.lo is None else option.lo, old.hi if option.hi is None else option.hi)
        if new.lo is not None and new.hi is not None and new.lo > new.hi:
            raise OptionError(
                f"the range {new} of dimension '{self.display_names[key]}' is empty", where=_OPTION_LOCATION
            )
        if key in applied and applied[key] != new:
            raise OptionError(
                f"dimension '{self.display_names[key]}' is given as {applied[key]} and as {new}", where=_OPTION_LOCATION
            )
        self.options[key] = applied[key] = new

    def _unify(self, key: str, name: str, applied: dict[str, _DimOption]) -> str:
        target = self._key(name)
        if target is None:
            target = name
            self.options[name], self.display_names[name] = self.options[key], name
        if target != key:
            self.unified[key] = target
            if key in applied:
                self._apply(target, applied[key], applied)
        return target

    def make_inputs(self) -> SymbolicInputs:
        """The inputs over symbols."""
        symbols: dict[str, Expr] = {}
        names: dict[str, str] = {}
        values: list[Value] = []
        for spec in self.specs:
            shape: list[Expr] = []
            for axis, dim in enumerate(spec.dims or ()):
                if (spec.name, axis) not in self.keys:
                    shape.append(const(dim if isinstance(dim, int) else 0))
                    continue
                key = self._root(self.keys[spec.name, axis])
                if key not in symbols:
                    symbols[key] = self._make_symbol(key, names)
                shape.append(symbols[key])
            values.append(Value(spec.name, TensorType(spec.dtype, tuple(shape))))
        return SymbolicInputs(tuple(values), tuple(s for s in symbols.values() if isinstance(s, Var)), names)

    def _make_symbol(self, key: str, names: dict[str, str]) -> Expr:
        option = self.options[key]
        if option.is_fixed and option.lo is not None:
            return const(option.lo)
        name = underscored_name(identifier(key), names)
        names[name] = self.display_names[key]
        return Symbol(name, option.lo, option.hi)


def _fixed_size_error(spec: InputSpec, axis: int, given: str, remedy: str) -> OptionError:
    size = (spec.dims or ())[axis]
    what = f"dimension {axis} of input '{spec.name}' is fixed to {size} in the model, got {given}"
    return OptionError(what, where=_OPTION_LOCATION, hint=_FIXED_HINT.format(remedy))


def _dim_count(spec: InputSpec) -> str:
    return pluralize(len(spec.dims or ()), "dimension")


def _entries(option: object) -> Sequence[object] | None:
    """The entries of an option for a whole input, None for an option of one dimension."""
    if isinstance(option, str):
        if "," in option:
            return [part.strip() for part in option.strip("[]() ").split(",")]
        parts = option.lower().split("x")
        return parts if len(parts) > 1 and all(_is_size_text(part) for part in parts) else None
    if isinstance(option, Sequence):
        entries: Sequence[object] = option
        # A pair in a tuple is a range; a list always has one entry per dimension.
        is_range = isinstance(option, tuple) and len(entries) == 2 and all(isinstance(e, int) for e in entries)
        return None if is_range else entries
    return None


def _is_size_text(text: str) -> bool:
    text = text.strip()
    return text in ("*", "?") or _SIZE.fullmatch(text) is not None or _RANGE.fullmatch(text) is not None


def _parse_option(entry: object, shown: str) -> _DimOption:
    error = OptionError(
        f"{entry!r} is not a size or range",
        where=f"{_OPTION_LOCATION}, dimension '{shown}'",
        hint="use 8, '1..64' or '*'",
    )
    if entry is None:
        return _DimOption()
    if isinstance(entry, bool):
        raise error
    if isinstance(entry, int):
        return _make_range(entry, entry, error)
    if isinstance(entry, Sequence) and not isinstance(entry, str):
        ends: list[object] = list(entry)
        if len(ends) != 2 or not all(e is None or isinstance(e, int) for e in ends):
            raise error
        low, high = (e if isinstance(e, int) else None for e in ends)
        return _make_range(low, high, error)
    if not isinstance(entry, str):
        raise error
    name, equals, text = entry.rpartition("=")
    text = text.strip()
    if not equals and not _is_size_text(text):
        if not re.fullmatch(r"[A-Za-z_][\w.]*", text):
            raise error
        return _DimOption(name=text)
    if not _is_size_text(text) or (equals and not name.strip()):
        raise error
    size = _parse_size(text, error)
    return _DimOption(size.lo, size.hi, name.strip() or None)


def _parse_size(text: str, error: OptionError) -> _DimOption:
    if text in ("*", "?"):
        return _DimOption()
    if _SIZE.fullmatch(text) is not None:
        return _make_range(int(text), int(text), error)
    ends = _RANGE.fullmatch(text)
    if ends is None:
        raise error
    return _make_range(int(ends[1]) if ends[1] else None, int(ends[2]) if ends[2] else None, error)


def _make_range(lo: int | None, hi: int | None, error: OptionError) -> _DimOption:
    out_of_range = [e for e in (lo, hi) if e is not None and not 0 <= e <= _MAX_SIZE]
    if out_of_range:
        raise OptionError(
            f"expected sizes from 0 to {_MAX_SIZE}, got {out_of_range[0]}", where=error.where, hint=error.hint
        )
    return _DimOption(lo, hi)
