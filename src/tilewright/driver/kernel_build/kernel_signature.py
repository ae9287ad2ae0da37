"""Signature of a kernel: its inputs and outputs, and the binding of arrays and sizes to them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.driver.artifact_names import NO_NAMES, tensor_spec
from tilewright.errors import Defect, FeedError, pluralize
from tilewright.expr.nodes import Buffer
from tilewright.expr.printer import show as show_expr
from tilewright.loops.ir import Func
from tilewright.measure.build import shape_at
from tilewright.runtime.feeds import InputSignature, feed_array, raise_problems
from tilewright.runtime.manifest import SymbolSpec, TensorSpec, format_dims

Array = np.ndarray[Any, Any]


class KernelSignature:
    """The inputs, outputs and sizes of a loop function.

    Attributes:
        func: the function.
        inputs: the parameters that it only reads.
        outputs: the parameters that it writes.
        free_symbols: names of the symbols that no dimension of an input binds; the caller passes them.
    """

    def __init__(self, func: Func) -> None:
        self.func = func
        self.inputs, self.outputs = func.inputs, func.outputs
        input_dims = {n for p in self.inputs for n in p.shape}
        self.free_symbols = tuple(s.name for s in func.symbols if s not in input_dims)
        self.specs = tuple(parameter_spec(b) for b in self.inputs)
        self._symbols = {s.name: s for s in func.symbols}
        self._signature = InputSignature(self.specs, [SymbolSpec(s.name, s.lo or 0, s.hi) for s in func.symbols])

    def bind_inputs(self, positional: Sequence[object], named: Mapping[str, object]) -> dict[str, Array]:
        """The inputs by name, in their order, as arrays of their types.

        The arrays may be strided; `make_contiguous` copies them once their sizes have been checked.

        Args:
            positional: inputs in order.
            named: the other inputs by name; sizes may be among them.

        Raises:
            FeedError: lists every input that is missing, unknown or of the wrong type.
        """
        names = [b.name for b in self.inputs]
        if len(positional) > len(names):
            hint = f"its inputs are {', '.join(names) or 'none'}; outputs go to `out=`"
            what = f"expected {pluralize(len(names), 'input')}, got {len(positional)}"
            raise FeedError(what, where=f"kernel '{self.func.name}'", hint=hint)
        problems: list[Defect] = []
        feeds = dict(zip(names, positional))  # noqa: B905 - the rest comes by name
        for name, value in named.items():
            if name in feeds:
                problems.append(Defect("feed", f"input '{name}'", "given both by position and by name"))
            elif name in names:
                feeds[name] = value
            elif name not in self.free_symbols:
                listed = ", ".join(f"'{n}'" for n in (*names, *self.free_symbols)) or "none"
                problems.append(Defect("feed", f"input '{name}'", "there is none", f"there are {listed}"))
        bound: dict[str, Array] = {}
        for spec in self.specs:
            if spec.name not in feeds:
                problems.append(Defect("feed", f"input '{spec.name}'", f"missing, expected {spec}"))
                continue
            array = feed_array(spec, feeds[spec.name], problems)
            if array is not None:
                bound[spec.name] = array
        raise_problems(problems)
        return bound

    def bind_sizes(self, arrays: Mapping[str, Array], named: Mapping[str, object]) -> dict[str, int]:
        """The sizes of all symbols.

        Args:
            arrays: every input.
            named: holds the sizes of the free symbols.

        Raises:
            FeedError: an array of another shape, or a size that is missing.
            ShapeError: sizes that contradict each other or leave their declared range.
        """
        problems: list[Defect] = []
        sizes = self._signature.bind({name: a.shape for name, a in arrays.items()}, {}, problems)
        for name in self.free_symbols:
            self._bind_free_symbol(name, named, sizes, problems)
        raise_problems(problems)
        for b in self.inputs:
            expected, got = self.shape(b, sizes), arrays[b.name].shape
            if expected != got:
                values = ", ".join(f"{s.name}={sizes[s.name]}" for s in self.func.symbols)
                dims = f"[{', '.join(map(show_expr, b.shape))}]"
                what = f"expected shape {format_dims(expected)} = {dims} for {values}, got {format_dims(got)}"
                problems.append(Defect("feed", f"input '{b.name}'", what))
        raise_problems(problems)
        return sizes

    def shape(self, b: Buffer, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of a parameter for sizes of the symbols."""
        return shape_at(b, self.func, sizes)

    def _bind_free_symbol(
        self, name: str, named: Mapping[str, object], sizes: dict[str, int], problems: list[Defect]
    ) -> None:
        """Adds the caller's size of a free symbol to `sizes`."""
        size, where = named.get(name), f"size '{name}'"
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            got = "it is missing" if name not in named else f"got {size!r}"
            problems.append(Defect("feed", where, f"no input determines it, {got}", f"pass {name}=<integer>"))
            return
        sizes[name] = int(size)  # pyright: ignore[reportArgumentType]
        v = self._symbols[name]
        low, high = v.lo or 0, (1 << 48) if v.hi is None else v.hi
        if not low <= sizes[name] <= high:
            problems.append(Defect("shape", where, f"expected a size within {low}..{high}, got {size}"))


def parameter_spec(b: Buffer) -> TensorSpec:
    """The record of a parameter that the runtime checks arrays against; compound sizes are None."""
    return tensor_spec(b.name, b, NO_NAMES, printed=False)
