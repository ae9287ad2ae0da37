"""What operator definitions emit besides tensor expressions: calls of routines, and data-dependent sizes."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from tilewright.errors import InternalError
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.routine.routine import Routine


@dataclass(frozen=True, slots=True, eq=False)
class RoutineStage:
    """The call of a routine.

    Attributes:
        routine: its buffers are the arguments, the outputs, and then the scratch buffers.
        arguments: buffers that it reads.
        outputs: buffers that it writes.
        scratch: buffers that hold data during the call only.
        scalars: int64 expressions over the symbols.
    """

    routine: Routine
    arguments: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]
    scalars: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SizesStage:
    """Symbols that the runtime binds to elements of an int64 tensor.

    Attributes:
        source: the tensor.
        symbols: the symbols.
        positions: of the element of each symbol.
    """

    source: Buffer
    symbols: tuple[Var, ...]
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DataSize:
    """A data-dependent size.

    Attributes:
        axis: of the node's first result, for the symbol's name; another one for each size of a node.
        upper_bound: the largest possible value.
        origin: the data that determine the size, where several nodes may read them: sizes of equal origin are equal.
    """

    axis: int
    upper_bound: int
    origin: Hashable = None


@dataclass(frozen=True, slots=True)
class BoundSize:
    """The symbol of a size.

    Attributes:
        symbol: what the runtime binds.
        size: what stands for it in shapes: an expression that later nodes need it to be equal to, else the symbol.
        is_new: whether no earlier node binds the symbol.
        constraints: conditions with their messages, which equate the two.
    """

    symbol: Var
    size: Expr
    is_new: bool
    constraints: tuple[tuple[Expr, str], ...] = ()


SizeMaker = Callable[[DataSize], BoundSize]


def no_sizes(size: DataSize) -> BoundSize:
    """Makes no symbol: for definitions outside of a graph."""
    raise InternalError(f"a definition outside of a graph has the data-dependent size {size}")
