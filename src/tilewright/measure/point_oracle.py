"""The oracle at single elements: what untransformed loops give at some elements of their outputs.

The interpreter executes all iterations, which is too slow for kernels of real sizes. Here an element is computed from
what it depends on: the iterations of its block, and the elements of earlier blocks that these read. The value of a
reduction of floats is accumulated in double precision.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.errors import InternalError
from tilewright.expr.evaluate import Environment, evaluate_expr
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.loops.accumulation import match_accumulation
from tilewright.loops.ir import Block, Func, IterKind, blocks

Array = np.ndarray[Any, Any]

MAX_POINTS = 1 << 20
"""Iterations that are evaluated at once, which limits the memory of temporaries."""

_REDUCE: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


class PointOracle:
    """Elements of the outputs of untransformed loops.

    Args:
        func: one block per written buffer, which it writes whole, indexed by its spatial variables.
        arrays: the inputs by name.
        sizes: sizes of the symbols by name.
    """

    def __init__(self, func: Func, arrays: Mapping[str, Array], sizes: Mapping[str, int]) -> None:
        self._writers = {b.body.buffer.name: b for b in blocks(func.body)}
        self._arrays = arrays
        self._sizes: dict[Var, Any] = {s: np.int64(sizes[s.name]) for s in func.symbols}

    def elements(self, output: Buffer, indices: Sequence[Array]) -> Array:
        """Elements of an output.

        Args:
            output: a buffer that the function writes.
            indices: per dimension the indices [point].

        Returns:
            The elements [point], of the buffer's type, or float64 where floats are accumulated.

        Raises:
            InternalError: the loops are not untransformed.
        """
        block = self._writers[output.name]
        spatial = [i for i in block.iters if i.kind is IterKind.SPATIAL]
        if tuple(block.body.indices) != tuple(i.var for i in spatial):
            raise InternalError(f"block {block.name!r} is not indexed by its spatial variables", where="oracle")
        count = len(indices[0]) if indices else 1
        points = dict(zip((i.var for i in spatial), indices, strict=True))
        accumulation = None if block.init is None else match_accumulation(block.body)
        if accumulation is None:
            return np.broadcast_to(self._values(block.body.value, points), (count,))
        return self._reduced(block, *accumulation, points, count)

    def _reduced(self, block: Block, op: str, term: Expr, points: Mapping[Var, Array], count: int) -> Array:
        """The values of a reduction at points."""
        reduce = [i for i in block.iters if i.kind is IterKind.REDUCE]
        extents = [int(evaluate_expr(i.extent, Environment(self._sizes, {}))) for i in reduce]
        dtype = block.body.buffer.dtype
        init = block.init.value if block.init is not None else term
        wide = np.dtype(np.float64) if dtype.is_float and op in ("add", "mul") else dtype.numpy
        result = np.array(np.broadcast_to(self._values(init, points), (count,))).astype(wide)
        columns = max(1, MAX_POINTS // max(1, count))
        total = int(np.prod(extents, dtype=np.int64))
        for first in range(0, total, columns):
            step = np.unravel_index(np.arange(first, min(total, first + columns)), extents)
            inner: dict[Var, Any] = {i.var: s.astype(np.int64)[None, :] for i, s in zip(reduce, step, strict=True)}
            outer = {v: x[:, None] for v, x in points.items()}
            terms = np.broadcast_to(self._values(term, {**outer, **inner}), (count, len(step[0])))
            result = _REDUCE[op](result, _REDUCE[op].reduce(terms.astype(wide), axis=1))
        return result

    def _values(self, e: Expr, variables: Mapping[Var, Any]) -> Any:
        with np.errstate(all="ignore"):
            return evaluate_expr(e, Environment({**self._sizes, **variables}, _Buffers(self)))

    def intermediate(self, name: str) -> "Array | _Intermediate":
        """An input, or a written buffer whose elements are computed when they are asked for."""
        if name in self._arrays:
            return self._arrays[name]
        return _Intermediate(self, self._writers[name].body.buffer)

    def shape(self, b: Buffer) -> tuple[int, ...]:
        """The shape of a buffer."""
        return tuple(int(evaluate_expr(n, Environment(self._sizes, {}))) for n in b.shape)


class _Intermediate:
    """A buffer that earlier blocks write, as far as an environment asks arrays."""

    def __init__(self, oracle: PointOracle, buffer: Buffer) -> None:
        self._oracle, self._buffer = oracle, buffer
        self.shape, self.dtype = oracle.shape(buffer), buffer.dtype.numpy

    def __getitem__(self, indices: tuple[Any, ...]) -> Any:
        if not indices:
            return self._oracle.elements(self._buffer, ()).astype(self.dtype)[0]
        at = np.broadcast_arrays(*indices)
        flat = np.ravel_multi_index([np.asarray(i).ravel() for i in at], self.shape)
        distinct, place = np.unique(flat, return_inverse=True)
        values = self._oracle.elements(self._buffer, np.unravel_index(distinct, self.shape))
        return values.astype(self.dtype)[place].reshape(at[0].shape)


class _Buffers(Mapping[str, Any]):
    """The buffers of an oracle by name."""

    def __init__(self, oracle: PointOracle) -> None:
        self._oracle = oracle

    def __getitem__(self, name: str) -> Any:
        return self._oracle.intermediate(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
