"""Chains of contractions with element-wise work, softmax and masks between them, written with tensor expressions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tilewright as tw
from tilewright.expr.nodes import Expr
from tilewright.expr.operations import conjunction
from tilewright.expr.tensor import Reduction
from tilewright.graph.fusion import Fusion, FusionPattern
from tilewright.loops.ir import Func
from tilewright.machine import Target
from tilewright.optimize.task import Task
from tilewright.tile.statements import statements_of

Size = Expr | int

PAST, WINDOW = 5, 20
"""The key of the first row's own position, and how many keys before its own a row attends to."""


@dataclass(frozen=True)
class Chain:
    """What a chain computes.

    Attributes:
        batch: sizes of batch axes.
        rows: the row axis.
        sizes: of the first sum, then of the columns of every contraction.
        softmax: whether the results of the first contraction pass a softmax.
        mask: what is added or selected before: none, keys, full, boolean, causal or window.
        transposed: whether second operands are stored with columns outside.
        activation: whether results of other contractions pass a rectifier with a bias.
        epilogue: whether the last results are added to something.
        heads_inside: whether the result is stored with its first batch axis behind the rows.
        prologue: whether the first operand is scaled in a computation of its own.
    """

    batch: tuple[Size, ...]
    rows: Size
    sizes: tuple[Size, ...]
    softmax: bool = False
    mask: str = "none"
    transposed: bool = False
    activation: bool = False
    epilogue: bool = False
    heads_inside: bool = False
    prologue: bool = False

    def tensor(self) -> tw.Tensor:
        """The result."""
        first, *columns = self.sizes
        x = tw.placeholder((*self.batch, self.rows, first), name="X")
        if self.prologue:
            operand = x
            x = _elementwise(x, lambda i: operand[i] * 0.5, "X2")
        inner = first
        for k, size in enumerate(columns):
            is_last = k == len(columns) - 1
            x = self._product(x, inner, size, f"C{k}", is_last and self.heads_inside and not self.epilogue)
            inner = size
            if self.softmax and k == 0:
                x = self._softmax(x, size)
            elif self.activation and not is_last:
                bias = tw.placeholder((size,), name=f"bias{k}")
                x = _elementwise(x, lambda i, x=x, bias=bias: tw.maximum(x[i] + bias[i[-1]], 0.0), f"A{k}")
        if self.epilogue:
            residual = tw.placeholder(tuple(x.shape), name="residual")
            x = _elementwise(x, lambda i, x=x: x[i] * 2.0 + residual[i], "Y")
        return x

    def _product(self, x: tw.Tensor, inner: Size, size: Size, name: str, heads_inside: bool) -> tw.Tensor:
        stored = (size, inner) if self.transposed else (inner, size)
        b = tw.placeholder((*self.batch, *stored), name=f"B{name}")
        r = tw.reduce_axis(inner, f"r{name}")

        def value(batch: Sequence[Expr], i: Expr, j: Expr) -> Reduction:
            other = (j, r) if self.transposed else (r, j)
            return tw.sum(x[(*batch, i, r)] * b[(*batch, *other)], r)

        if heads_inside and self.batch:
            shape = (*self.batch[1:], self.rows, self.batch[0], size)
            return tw.compute(shape, lambda *i: value((i[-2], *i[:-3]), i[-3], i[-1]), name)
        return tw.compute((*self.batch, self.rows, size), lambda *i: value(i[:-2], i[-2], i[-1]), name)

    def _softmax(self, x: tw.Tensor, size: Size) -> tw.Tensor:
        """Softmax as the graph lowers it: maximum, exponentials, sum, its inverse, product."""
        x = self._with_mask(x, size)
        a, b = tw.reduce_axis(size, "a"), tw.reduce_axis(size, "b")
        largest = tw.compute(tuple(x.shape)[:-1], lambda *i: tw.max(x[(*i, a)], a), "largest")
        power = _elementwise(x, lambda i: tw.exp(x[i] - largest[i[:-1]]), "power")
        total = tw.compute(tuple(x.shape)[:-1], lambda *i: tw.sum(power[(*i, b)], b), "total")
        inverse = tw.compute(tuple(x.shape)[:-1], lambda *i: 1.0 / total[i], "inverse")
        return _elementwise(x, lambda i: power[i] * inverse[i[:-1]], "weights")

    def _with_mask(self, x: tw.Tensor, size: Size) -> tw.Tensor:
        match self.mask:
            case "keys":
                mask = tw.placeholder((size,), name="mask")
                return _elementwise(x, lambda i: x[i] * 0.25 + mask[i[-1]], "S")
            case "full":
                mask = tw.placeholder((self.rows, size), name="mask")
                return _elementwise(x, lambda i: x[i] * 0.25 + mask[i[-2:]], "S")
            case "boolean":
                mask = tw.placeholder((self.rows, size), "bool", name="mask")
                return _elementwise(x, lambda i: tw.select(mask[i[-2:]], x[i], -1e9), "S")
            case "causal":
                return _elementwise(x, lambda i: tw.select(i[-1] <= i[-2] + PAST, x[i], float("-inf")), "S")
            case "window":
                return _elementwise(x, lambda i: tw.select(_in_window(i), x[i] * 0.25, float("-inf")), "S")
            case _:
                return x


def _in_window(i: tuple[Expr, ...]) -> Expr:
    own = i[-2] + PAST
    return conjunction(i[-1] <= own, i[-1] >= own - WINDOW)


def _elementwise(x: tw.Tensor, value: Callable[[tuple[Expr, ...]], Expr], name: str) -> tw.Tensor:
    return tw.compute(tuple(x.shape), lambda *i: value(i), name)


def task_of(func: Func, target: str | None = None) -> Task:
    """The task of a chain."""
    return Task(func, frozenset(), Target.of(target), Fusion(FusionPattern.SEQUENCE, 0, ()))


def axes_of(func: Func, statement: str) -> list[str]:
    """The axes of a statement."""
    return [a.axis for a in statements_of(func)[statement].axes]
