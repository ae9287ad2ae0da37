"""Names of values and symbols in an artifact: the user's names where there are any, else the buffers'."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Buffer, Const, Expr, Var
from tilewright.expr.printer import show
from tilewright.expr.traversal import free_vars
from tilewright.graph.program import Program
from tilewright.runtime.manifest import Dim, TensorSpec


@dataclass(frozen=True, slots=True, eq=False)
class ArtifactNames:
    """Names in the artifact.

    Attributes:
        values: value names by buffer name; for a buffer with several names, the one under which it is computed.
        symbols: the user's names of symbols by identifier.
        constants: names of constant buffers, which have no value of their own.
    """

    values: Mapping[str, str]
    symbols: Mapping[str, str]
    constants: frozenset[str]

    def of(self, b: Buffer) -> str:
        """The value name of a buffer."""
        return self.values[b.name] if b.name in self.values else unused_name(b.name, set(self.values.values()))

    def is_copy(self, output: str, b: Buffer) -> bool:
        """Whether an output is a copy of its buffer, which is a constant or has another name."""
        return b.name in self.constants or self.of(b) != output

    def symbol_name(self, v: Var) -> str:
        """The user's name of a symbol."""
        return self.symbols.get(v.name, v.name)

    def with_user_symbols(self, e: Expr) -> Expr:
        """The expression over the user's symbols, for printing."""
        return substitute(e, {v: v.renamed(self.symbol_name(v)) for v in free_vars(e)})


NO_NAMES = ArtifactNames({}, {}, frozenset())
"""Every value and symbol keeps its internal name."""


def unused_name(name: str, used: Collection[str]) -> str:
    """The name, with as many "%" in front as make it different from the used ones."""
    while name in used:
        name = f"%{name}"
    return name


def make_names(program: Program) -> ArtifactNames:
    """The names of a program's values and symbols."""
    input_names = program.input_names or tuple(b.name for b in program.inputs)
    values = {b.name: name for b, name in zip(program.inputs, input_names, strict=True)}
    for name, b in program.outputs:
        if b.name not in program.constants:
            values.setdefault(b.name, name)
    return ArtifactNames(values, program.symbol_names, frozenset(program.constants))


def make_body_names(program: Program) -> ArtifactNames:
    """The names of the values of a branch or of a loop's body, whose outputs need no copies."""
    values = {b.name: name for b, name in zip(program.inputs, program.input_names, strict=True)}
    for name, b in program.outputs:
        if b.name not in program.constants:
            values.setdefault(b.name, unused_name(name, set(values.values())))
    return ArtifactNames(values, program.symbol_names, frozenset())


def dim_specs(shape: Sequence[Expr], names: ArtifactNames, *, printed: bool) -> tuple[Dim, ...]:
    """The dims of a shape for the manifest: literals, names of symbols, and compound sizes as text or None."""
    return tuple(_dim_spec(n, names, printed) for n in shape)


def _dim_spec(n: Expr, names: ArtifactNames, printed: bool) -> Dim:
    if isinstance(n, Const):
        return int(n.value)
    if isinstance(n, Var):
        return names.symbol_name(n)
    return show(names.with_user_symbols(n)) if printed else None


def tensor_spec(name: str, b: Buffer, names: ArtifactNames, *, printed: bool = True) -> TensorSpec:
    """The manifest's record of a buffer."""
    return TensorSpec(name, b.dtype.name, dim_specs(b.shape, names, printed=printed))
