"""Data-dependent sizes within one call: symbols get the elements of a tensor that native code has computed."""

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.errors import InternalError, ShapeError, TilewrightError
from tilewright.runtime.block_calls import BlockCalls, Resources, Sizes
from tilewright.runtime.manifest import SizesStep, SymbolSpec, TensorSpec
from tilewright.runtime.symbol_range import violated_limit


class SizesCall:
    """A step that binds sizes."""

    def __init__(self, step: SizesStep, symbols: Mapping[str, SymbolSpec]) -> None:
        """Args: the step, and all symbols around it by name."""
        self.step = step
        self.blocks: tuple[BlockCalls, ...] = ()
        self._bindings = [(k, symbols[name]) for name, k in zip(step.symbols, step.positions, strict=True)]

    def run(self, inputs: Sequence[Any], sizes: Sizes, resources: Resources) -> list[Any]:
        """Binds the sizes; there are no outputs.

        Raises:
            ShapeError: a size is out of its range, or contradicts what later nodes need.
        """
        elements = inputs[0].reshape(-1)
        for position, symbol in self._bindings:
            size = int(elements[position])
            limit = violated_limit(symbol, size)
            if limit:
                what = f"the data ask for a size of {size}, expected {limit}"
                raise ShapeError(what, where=", ".join(self.step.nodes), hint="these data do not suit the model")
            sizes[symbol.name] = size
        return []

    def shape_error(
        self, spec: TensorSpec, shape: Sequence[int], sizes: Mapping[str, int], symbols: Mapping[str, SymbolSpec]
    ) -> TilewrightError:
        """There are no results whose shape could be wrong."""
        return InternalError(f"result '{spec.name}' of a step without results")
