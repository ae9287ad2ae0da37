"""A chain of convolutions as its tree sees it: what every convolution sums, and what is between two of them.

A chain is a kernel of convolutions, each of which reads the result of the one before: pointwise, depthwise, or over a
window of all channels. Between two of them are element-wise work (bias, activation) and padding; after the last one
there may be a residual. All tensors are [batches..., channels, rows, columns].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Const, Expr, Load, Select, Var
from tilewright.expr.traversal import free_vars, loads
from tilewright.loops.ir import Block, Func, IterKind, blocks
from tilewright.optimize.strides import contraction_operands
from tilewright.tile.statements import axis_names, extents_by_axis

PLACE = "chain of convolutions"
"""Where the errors of this package are."""

IMAGE_RANK = 3
"""Axes of an image: channels, rows, columns."""


@dataclass(frozen=True, slots=True)
class ImageAxes:
    """The axes of a tensor of the chain.

    Attributes:
        channels, rows, columns: names of the axes.
    """

    channels: str
    rows: str
    columns: str


@dataclass(frozen=True, slots=True)
class ConvolutionStage:
    """A convolution with what precedes and follows it.

    Attributes:
        name: of the block that sums.
        axes: of its results.
        reduced: the axes that it sums along: taps of the window first, input channels last.
        is_depthwise: whether every channel is computed of one channel.
        weights: the other operand: the name of its buffer, and its dimensions with the result's channels last.
        stride: rows between those that two neighbouring rows of results read.
        reach: rows that one row of results reads, from the first to the last.
        padding: the block that pads what it reads, and the axes of its results; None where there is none.
        elementwise: the blocks after it, in order.
    """

    name: str
    axes: ImageAxes
    reduced: tuple[str, ...]
    is_depthwise: bool
    weights: tuple[str, tuple[int, ...]]
    stride: int
    reach: int
    padding: tuple[str, ImageAxes] | None = None
    elementwise: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConvolutionChain:
    """A chain of convolutions.

    Attributes:
        stages: the convolutions in order.
        batch: the axes in front of the channels, which all results have in common.
        extents: the points of every axis.
    """

    stages: tuple[ConvolutionStage, ...]
    batch: tuple[str, ...]
    extents: Mapping[str, Expr] = field(repr=False)

    def points(self, axis: str) -> int:
        """The points of an axis of literal size."""
        extent = self.extents[axis]
        assert isinstance(extent, Const)
        return int(extent.value)

    @staticmethod
    def of(func: Func) -> "ConvolutionChain":
        """The chain of a kernel's untransformed loops.

        Raises:
            ScheduleError: the kernel is no such chain, or one that no tree can be built for; says why.
        """
        return _Reader(func).chain()


def has_windows(func: Func) -> bool:
    """Whether a kernel sums products over windows: of elements at places that a result's own and a tap determine."""
    for b in blocks(func.body):
        kinds = {i.var: i.kind for i in b.iters}
        indices = [i for x in contraction_operands(b) or () for i in x.indices]
        if any({kinds[v] for v in free_vars(i) if v in kinds} == set(IterKind) for i in indices):
            return True
    return False


class _Reader:
    """Reads the stages of a chain off its blocks, in order."""

    def __init__(self, func: Func) -> None:
        self._func, self._names = func, axis_names(func)
        self._found: list[ConvolutionStage] = []
        self._padding: tuple[str, ImageAxes] | None = None

    def chain(self) -> ConvolutionChain:
        nodes = blocks(self._func.body)
        for k, node in enumerate(nodes):
            self._check_readers(nodes, k)
            previous = nodes[k - 1] if k else None
            if any(i.kind is IterKind.REDUCE for i in node.iters):
                self._found.append(self._convolution(node, previous))
                self._padding = None
            else:
                self._add_elementwise(node, previous)
        if self._padding is not None or len(self._found) < 2:
            raise ScheduleError(f"expected two or more convolutions, got {len(self._found)}", where=PLACE)
        extents = extents_by_axis(self._func)
        batch = self._spatial(nodes[-1].name)[:-IMAGE_RANK]
        for stage in self._found:
            names = self._spatial(stage.name)
            if names[:-IMAGE_RANK] != batch:
                raise ScheduleError(f"{stage.name!r} has other batches than the result", where=PLACE)
        shown = {a for b in nodes for a in self._names[b.name] if a not in batch}
        symbolic = sorted(a for a in shown if not isinstance(extents[a], Const))
        if symbolic:
            what = f"axis {symbolic[0]!r} is of symbolic size, expected literal channels, rows and columns"
            raise ScheduleError(what, where=PLACE)
        return ConvolutionChain(tuple(self._found), batch, extents)

    def _spatial(self, name: str) -> tuple[str, ...]:
        node = next(b for b in blocks(self._func.body) if b.name == name)
        kinds = (i.kind for i in node.iters)
        return tuple(a for a, kind in zip(self._names[name], kinds, strict=True) if kind is IterKind.SPATIAL)

    def _image_axes(self, node: Block) -> ImageAxes:
        """The axes of a block's results.

        Raises:
            ScheduleError: they are no image.
        """
        names = self._spatial(node.name)
        if len(names) < IMAGE_RANK or node.body.indices[: len(names)] != tuple(i.var for i in node.iters)[: len(names)]:
            what = f"{node.name!r} is no image, expected [..., channels, rows, columns] of several points each"
            raise ScheduleError(what, where=PLACE)
        return ImageAxes(*names[-IMAGE_RANK:])

    def _check_readers(self, nodes: Sequence[Block], k: int) -> None:
        """Checks that the block after one alone reads its results, or the kernel's caller.

        Raises:
            ScheduleError: others do.
        """
        buffer = nodes[k].body.buffer
        readers = [b.name for b in nodes if b is not nodes[k] and buffer in {x.buffer for x in loads(b.body.value)}]
        following = [nodes[k + 1].name] if k + 1 < len(nodes) else []
        if readers != following or (buffer in self._func.outputs) != (not following):
            what = f"the results of {nodes[k].name!r} are read by {', '.join(map(repr, readers)) or 'nothing'}"
            raise ScheduleError(f"{what} and stored, expected the next computation alone to read them"
                                if buffer in self._func.outputs else what, where=PLACE)  # fmt: skip

    def _convolution(self, node: Block, previous: Block | None) -> ConvolutionStage:
        """The stage of a block that sums.

        Raises:
            ScheduleError: it is no convolution of the block's before.
        """
        operands = contraction_operands(node)
        axes = self._image_axes(node)
        variables = dict(zip((i.var for i in node.iters), self._names[node.name], strict=True))
        names = {a: v for v, a in variables.items()}
        channel, row, column = (names[a] for a in (axes.channels, axes.rows, axes.columns))
        data, weights = _data_and_weights(operands, None if previous is None else previous.body.buffer.name, row)
        if data is None or weights is None:
            raise ScheduleError(f"{node.name!r} is no convolution of what is computed before it", where=PLACE)
        reduced = {i.var for i in node.iters if i.kind is IterKind.REDUCE}
        input_channel = data.indices[-IMAGE_RANK] if len(data.indices) >= IMAGE_RANK else None
        if not isinstance(input_channel, Var) or input_channel not in {channel, *reduced}:
            what = f"{node.name!r} reads some channels of {data.buffer.name!r}, expected its own or all of them"
            raise ScheduleError(what, where=PLACE)
        if {channel, row} & {v for i in data.indices[-2:] for v in free_vars(i)} != {row}:
            raise ScheduleError(f"{node.name!r} reads {data.buffer.name!r}, expected rows around its own", where=PLACE)
        at_channel = [d for d, i in enumerate(weights.indices) if i is channel]
        if len(at_channel) != 1 or {row, column} & {v for i in weights.indices for v in free_vars(i)}:
            what = f"{node.name!r} reads weights {weights.buffer.name!r}, expected one set per channel"
            raise ScheduleError(what, where=PLACE)
        order = (*(d for d in range(len(weights.indices)) if d != at_channel[0]), at_channel[0])
        taps = tuple(variables[v] for v in variables if v in reduced and v is not input_channel)
        summed = (variables[input_channel],) if input_channel in reduced else ()
        return ConvolutionStage(
            node.name, axes, (*taps, *summed), input_channel is channel, (weights.buffer.name, order),
            *_row_span(node, data, row), self._padding,
        )  # fmt: skip

    def _add_elementwise(self, node: Block, previous: Block | None) -> None:
        """Adds a block that reduces nothing: padding in front of a convolution, or work after one."""
        own = tuple(i.var for i in node.iters)
        source = None if previous is None else previous.body.buffer
        reads = [x for x in loads(node.body.value) if source is None or x.buffer == source]
        if self._padding is None and self._found and all(x.indices == own for x in reads):
            last = self._found[-1]
            self._found[-1] = replace(last, elementwise=(*last.elementwise, node.name))
        elif self._padding is None and isinstance(node.body.value, Select):
            self._padding = (node.name, self._image_axes(node))
        else:
            what = f"{node.name!r} is neither padding nor element-wise work after a convolution"
            raise ScheduleError(what, where=PLACE)


def _row_span(node: Block, data: Load, row: Var) -> tuple[int, int]:
    """The stride and the reach of a convolution along rows.

    Raises:
        ScheduleError: they are not known.
    """
    index, extents = data.indices[-2], {i.var: i.extent for i in node.iters if i.kind is IterKind.REDUCE}
    steps = {v: substitute(index, {v: v + 1}) - index for v in free_vars(index)}
    literal = {v: int(n.value) for v, n in steps.items() if isinstance(n, Const) and n.value > 0}
    points = {v: int(n.value) for v, n in extents.items() if isinstance(n, Const)}
    if literal.keys() != steps.keys() or any(v is not row and v not in points for v in literal):
        raise ScheduleError(f"{node.name!r} reads rows at other than literal strides and dilations", where=PLACE)
    return literal[row], 1 + sum(n * (points[v] - 1) for v, n in literal.items() if v is not row)


def _data_and_weights(
    operands: tuple[Load, Load] | None, source: str | None, row: Var
) -> tuple[Load | None, Load | None]:
    """The operand that is convolved, what is computed before or an input that rows index, and the other one."""
    pairs = () if operands is None else (operands, operands[::-1])
    for data, weights in pairs:
        is_data = data.buffer.name == source if source is not None else row in {
            v for i in data.indices for v in free_vars(i)
        }  # fmt: skip
        if is_data and weights.buffer.name != data.buffer.name:
            return data, weights
    return None, None
