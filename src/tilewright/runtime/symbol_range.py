"""The range of a symbolic dimension, which the sizes of a call must keep to."""

from tilewright.runtime.manifest import SymbolSpec


def violated_limit(symbol: SymbolSpec, size: int) -> str | None:
    """The limit of a symbol's range that a size violates ("at least 1"); None where it is in the range."""
    if size < symbol.lo:
        return f"at least {symbol.lo}"
    return None if symbol.hi is None or size <= symbol.hi else f"at most {symbol.hi}"
