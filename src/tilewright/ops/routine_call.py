"""Calls of routines in operator definitions, and data-dependent sizes.

A definition computes with tensor expressions where it can, and calls a routine where it cannot. Where the data decide a
size, it computes that size as an int64 tensor, by expressions or by a routine, and asks for a symbol for each of its
elements; what follows has sizes over these symbols, like those of any dynamic dimension.
"""

from collections.abc import Sequence
from functools import reduce
from operator import mul

from tilewright.expr.algebra.bounds import interval
from tilewright.expr.dtype import DType, int64
from tilewright.expr.nodes import Buffer, Const, Expr, as_expr, const
from tilewright.expr.operations import select
from tilewright.ops.definition import Definition, OpValue
from tilewright.routine.routine import Routine
from tilewright.routine.stages import DataSize, RoutineStage, SizesStage

MAX_DATA_DEPENDENT_SIZE = 2**31 - 1
"""Upper bound of a size without any other bound."""


def call_routine(
    d: Definition,
    routine: Routine,
    arguments: Sequence[OpValue],
    outputs: Sequence[tuple[Sequence[Expr | int], DType]],
    scalars: Sequence[Expr | int] = (),
    scratch: Sequence[tuple[Expr | int, DType]] = (),
) -> tuple[OpValue, ...]:
    """The results of a routine.

    Args:
        d: the definition that calls it.
        routine: its buffers are the arguments, the outputs, and the scratch buffers.
        arguments: tensors that it reads.
        outputs: shape and type of the tensors that it writes, all elements of each.
        scalars: int64 expressions over the symbols.
        scratch: number of elements and type of buffers that hold data during the call.
    """
    written = [Buffer(d.make_name(), tuple(map(as_expr, shape)), dtype) for shape, dtype in outputs]
    inner = [Buffer(d.make_name(), (as_expr(n),), dtype) for n, dtype in scratch]
    stage = RoutineStage(
        routine, tuple(a.buffer for a in arguments), tuple(written), tuple(inner), tuple(map(as_expr, scalars))
    )
    if len(stage.arguments) + len(written) + len(inner) != len(routine.buffers) or len(scalars) != len(routine.scalars):
        raise TypeError(f"{d.op_type}: wrong number of arguments for routine {routine.name}")
    d.stages.append(stage)
    return tuple(map(OpValue, written))


def data_sizes(d: Definition, source: OpValue, sizes: Sequence[DataSize]) -> tuple[tuple[Expr, Expr], ...]:
    """Per size, the symbol that the runtime binds to the element of a tensor, and the expression that stands for it in
    shapes: what later nodes need it to be equal to, else the symbol itself.

    Args:
        d: the definition.
        source: int64 tensor with an element per size, none of them negative.
        sizes: what is known of them.
    """
    if source.dtype is not int64:
        raise TypeError(f"{d.op_type}: sizes have the type {source.dtype}")
    made = [d.make_size(s) for s in sizes]
    new = [(k, m.symbol) for k, m in enumerate(made) if m.is_new]
    d.stages.append(SizesStage(source.buffer, tuple(v for _, v in new), tuple(k for k, _ in new)))
    d.constraints += [c for m in made for c in m.constraints]
    return tuple((m.symbol, m.size) for m in made)


def upper_bound(*sizes: Expr) -> int:
    """The largest possible product of sizes, at most `MAX_DATA_DEPENDENT_SIZE`."""
    highest = [int(n.value) if isinstance(n, Const) else interval(n)[1] for n in sizes]
    product = reduce(mul, (MAX_DATA_DEPENDENT_SIZE if n is None else max(n, 0) for n in highest), 1)
    return min(product, MAX_DATA_DEPENDENT_SIZE)


def shape_tensor(d: Definition, sizes: Sequence[Expr | int]) -> OpValue:
    """Sizes as an int64 tensor."""
    return _tensor_of(d, tuple(map(as_expr, sizes)))


def float_tensor(d: Definition, numbers: Sequence[float], dtype: DType) -> OpValue:
    """Numbers as a tensor."""
    return _tensor_of(d, tuple(const(n, dtype) for n in numbers))


def _tensor_of(d: Definition, elements: Sequence[Expr]) -> OpValue:
    def body(i: Expr) -> Expr:
        result = elements[-1]
        for k in reversed(range(len(elements) - 1)):
            result = select(i.equals(k), elements[k], result)
        return result

    return d.compute((len(elements),), body)


def known_length(x: OpValue) -> int | None:
    """The number of elements of a tensor, where it is literal."""
    return int(x.buffer.size.value) if isinstance(x.buffer.size, Const) else None
