"""What values and symbols are called in an artifact: the user's names where there are any, buffers' names elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.expr.buffer import Buffer
from tilewright.expr.nodes import Const, Expr, Var, free_vars
from tilewright.expr.printer import show
from tilewright.expr.simplify import substitute
from tilewright.graph.program import Program
from tilewright.runtime.manifest import Dim, TensorSpec


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """Names in the artifact.

    Attributes:
        values: by buffer name; of a buffer with several names the one under which it is computed.
        symbols: by identifier.
        constants: names of constant buffers, which have no value of their own.
    """

    values: Mapping[str, str]
    symbols: Mapping[str, str]
    constants: frozenset[str]

    def of(self, b: Buffer) -> str:
        """What the buffer is called."""
        return self.values[b.name] if b.name in self.values else _internal(b.name, self.values)

    def is_extra(self, output: str, b: Buffer) -> bool:
        """Whether an output needs a copy because its buffer is a constant or has another name."""
        return b.name in self.constants or self.of(b) != output

    def symbol(self, v: Var) -> str:
        """What the user calls a symbol."""
        return self.symbols.get(v.name, v.name)

    def shown(self, e: Expr) -> Expr:
        """An expression over the user's symbols, for printing."""
        return substitute(e, {v: Var(self.symbol(v), v.lo, v.hi) for v in free_vars(e)})


def _internal(name: str, values: Mapping[str, str]) -> str:
    taken = set(values.values())
    while name in taken:
        name = f"%{name}"
    return name


def make_names(program: Program) -> Names:
    """The names of a program's values."""
    given = program.input_names or tuple(b.name for b in program.inputs)
    values = {b.name: name for b, name in zip(program.inputs, given, strict=True)}
    for name, b in program.outputs:
        if b.name not in program.constants:
            values.setdefault(b.name, name)
    return Names(values, program.symbol_names, frozenset(program.constants))


def dims(shape: Sequence[Expr], names: Names, *, printed: bool) -> tuple[Dim, ...]:
    """Sizes for a manifest: literals, symbols, and compound ones either printed or None."""
    return tuple(_dim(n, names, printed) for n in shape)


def _dim(n: Expr, names: Names, printed: bool) -> Dim:
    if isinstance(n, Const):
        return int(n.value)
    if isinstance(n, Var):
        return names.symbol(n)
    return show(names.shown(n)) if printed else None


def spec(name: str, b: Buffer, names: Names, *, printed: bool = True) -> TensorSpec:
    """The record of a buffer."""
    return TensorSpec(name, b.dtype.name, dims(b.shape, names, printed=printed))
