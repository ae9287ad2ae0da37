"""The primitives as methods of `Schedule`; the primitive's own documentation is appended to each method's.

Methods return the names of new loops, blocks or buffers. Names that are not given are chosen and recorded, so that
later steps of a trace refer to them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from inspect import cleandoc
from typing import Any, Literal, overload

from tilewright.expr.nodes import Expr, MemoryScope
from tilewright.layout.layout import Layout
from tilewright.loops.ir import For, Func, LoopKind, blocks, walk
from tilewright.schedule.created_names import CreatedNames
from tilewright.schedule.rewrite_tree import find_block
from tilewright.schedule.step import PRIMITIVES, Step
from tilewright.schedule.tails import Tail

TwoLoopTail = Literal[Tail.GUARD, Tail.MASK, Tail.SHIFT_INWARDS, Tail.PAD, "guard", "mask", "shift_inwards", "pad"]
"""Tails that result in two loops, not three."""


class Primitives(ABC):
    """Every primitive as a method; `Schedule` implements applying and recording."""

    func: Func

    @abstractmethod
    def do(self, primitive: str, *args: object, **named: object) -> None:
        """Applies a primitive by name and records it."""

    @abstractmethod
    def _try(self, primitive: str, *args: object) -> tuple[Step, Func]:
        """A step and the function after it, not recorded."""

    # Queries

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of all blocks, in the order of execution."""
        return tuple(b.name for b in blocks(self.func.body))

    @property
    def buffers(self) -> tuple[str, ...]:
        """The names of the internal buffers."""
        return tuple(b.name for b in self.func.allocs)

    def loops(self, block: str | None = None) -> tuple[str, ...]:
        """The names of the loops that enclose a block, outermost first; of all loops where no block is given."""
        if block is not None:
            return tuple(x.var.name for x in find_block(self.func, block)[1])
        return tuple(s.var.name for s, _ in walk(self.func.body) if isinstance(s, For))

    def writers(self, buffer: str) -> tuple[str, ...]:
        """The names of the blocks that write a buffer."""
        return tuple(b.name for b in blocks(self.func.body) if b.body.buffer.name == buffer)

    # Loop structure

    @overload
    def split(
        self, loop: str, factor: int, names: Sequence[str] | None = None, tail: TwoLoopTail = Tail.GUARD
    ) -> tuple[str, str]: ...
    @overload
    def split(
        self, loop: str, factor: int, names: Sequence[str] | None = None, *, tail: Tail | str
    ) -> tuple[str, ...]: ...
    def split(
        self, loop: str, factor: int, names: Sequence[str] | None = None, tail: Tail | str = Tail.GUARD
    ) -> tuple[str, ...]:
        """Splits a loop into tiles of `factor` iterations. Returns the outer and the inner loop and, where the tail is
        a remainder that exists, its loop. See `schedule.loop_transforms.split` and `schedule.tails.Tail`."""
        count = 3 if tail == Tail.REMAINDER else 2
        return self._apply_with_names(lambda new: new.loops[:count], "split", loop, factor, names, tail)

    def split_parts(self, loop: str, parts: int, names: Sequence[str] | None = None) -> tuple[str, str]:
        """Splits a loop into a number of parts. Returns the outer and the inner loop. See
        `schedule.loop_transforms.split_parts`."""
        outer, inner = self._apply_with_names(lambda new: new.loops[:2], "split_parts", loop, parts, names)
        return outer, inner

    def tile(
        self,
        loops: Sequence[str],
        factors: Sequence[int],
        names: Sequence[str] | None = None,
        tail: Tail | str = Tail.GUARD,
    ) -> tuple[str, ...]:
        """Splits every loop of a perfect nest. Returns the loops over tiles, then those inside a tile. See
        `schedule.tile.tile`."""
        return self._apply_with_names(lambda new: new.loops[: 2 * len(loops)], "tile", loops, factors, names, tail)

    def fuse(self, outer: str, inner: str, name: str | None = None) -> str:
        """Fuses two directly nested loops. Returns the name of the new loop. See `schedule.loop_transforms.fuse`."""
        return self._apply_with_name(lambda new: new.loops, "fuse", outer, inner, name)

    def reorder(self, order: Sequence[str]) -> None:
        """Reorders loops of one perfect nest. See `schedule.loop_transforms.reorder`."""
        self.do("reorder", order)

    def peel(self, loop: str, at: Expr | int | str, name: str | None = None) -> str:
        """Cuts a loop's range in two. Returns the loop over the second part. See `schedule.loop_transforms.peel`."""
        return self._apply_with_name(lambda new: new.loops, "peel", loop, at, name)

    # Loop kinds

    def parallel(self, loop: str) -> None:
        """Executes the iterations of a loop on several threads. See `schedule.annotate.parallel`."""
        self.do("parallel", loop)

    def vectorize(self, loop: str) -> None:
        """Executes the iterations of a loop in the lanes of vectors. See `schedule.annotate.vectorize`."""
        self.do("vectorize", loop)

    def unroll(self, loop: str) -> None:
        """Fully unrolls a loop. See `schedule.annotate.unroll`."""
        self.do("unroll", loop)

    def bind(self, loop: str, axis: LoopKind | str) -> None:
        """Binds a loop to an axis of a GPU, such as "thread_x". See `schedule.annotate.bind`."""
        self.do("bind", loop, axis)

    def virtual_thread(self, loop: str) -> None:
        """Interleaves the iterations of a loop. See `schedule.annotate.virtual_thread`."""
        self.do("virtual_thread", loop)

    # Storage

    def set_scope(self, buffer: str, scope: MemoryScope | str) -> None:
        """Moves an internal buffer to "memory", "stack" or "register". See `schedule.staging.set_scope`."""
        self.do("set_scope", buffer, scope)

    def cache_read(
        self,
        block: str,
        buffer: str,
        name: str | None = None,
        scope: MemoryScope | str = MemoryScope.MEMORY,
        layout: Layout | None = None,
    ) -> str:
        """Redirects a block to a copy of an operand. Returns the copy, which the block `<copy>_read` fills. See
        `schedule.cache.cache_read`."""
        return self._apply_with_name(lambda new: new.buffers, "cache_read", block, buffer, name, scope, layout)

    def cache_write(
        self,
        block: str,
        name: str | None = None,
        scope: MemoryScope | str = MemoryScope.MEMORY,
        layout: Layout | None = None,
    ) -> str:
        """Redirects a block to write an internal buffer, which the block `<block>_write` copies. Returns the buffer.
        See `schedule.cache.cache_write`."""
        return self._apply_with_name(lambda new: new.buffers, "cache_write", block, name, scope, layout)

    def pack(self, block: str, buffer: str, dim: int, factor: int, name: str | None = None) -> str:
        """Redirects a block to a copy of an operand in tiles. Returns the copy, which the block `<copy>_pack` fills.
        See `schedule.cache.pack`."""
        return self._apply_with_name(lambda new: new.buffers, "pack", block, buffer, dim, factor, name)

    def transform_layout(self, buffer: str, layout: Layout, names: Sequence[str] | None = None) -> tuple[str, ...]:
        """Stores an internal buffer in another layout. Returns the new loops of the block that writes it. See
        `schedule.transform_layout.transform_layout`."""
        return self._apply("transform_layout", buffer, layout, names).loops

    def store_at(self, buffer: str, loop: str) -> None:
        """Shrinks an internal buffer to what one iteration of a loop accesses. See `schedule.store_at.store_at`."""
        self.do("store_at", buffer, loop)

    def pad_storage(self, buffer: str, dim: int, multiple: int = 1, extra: int = 0) -> None:
        """Pads a dimension of an internal buffer. See `schedule.staging.pad_storage`."""
        self.do("pad_storage", buffer, dim, multiple, extra)

    def clone_producer(self, block: str, consumer: str, names: Sequence[str] | None = None) -> str:
        """Gives one consumer its own producer. Returns the new block. See `schedule.staging.clone_producer`."""
        pair = self._apply_with_names(
            lambda new: (new.blocks[0], new.buffers[0]), "clone_producer", block, consumer, names
        )
        return pair[0]

    def prefetch(self, loop: str, buffer: str, distance: int) -> None:
        """Prefetches what a loop accesses some iterations later. See `schedule.prefetch.prefetch`."""
        self.do("prefetch", loop, buffer, distance)

    # Placement of computations

    def compute_at(self, block: str, loop: str, names: Sequence[str] | None = None) -> tuple[str, ...]:
        """Computes what a loop's iteration needs of a block inside that iteration. Returns the block's new loops. See
        `schedule.compute_at.compute_at`."""
        return self._apply("compute_at", block, loop, names).loops

    def compute_with(self, block: str, loop: str) -> None:
        """Lets a block share a loop of a later nest, and the loops around it. See
        `schedule.compute_with.compute_with`."""
        self.do("compute_with", block, loop)

    def reverse_compute_at(self, block: str, loop: str, names: Sequence[str] | None = None) -> tuple[str, ...]:
        """Moves a consumer to the end of a loop of its producers. Returns the block's new loops. See
        `schedule.reverse_compute_at.reverse_compute_at`."""
        return self._apply("reverse_compute_at", block, loop, names).loops

    def inline(self, block: str) -> None:
        """Substitutes an element-wise producer into all its readers. See `schedule.inline.inline`."""
        self.do("inline", block)

    def reverse_inline(self, block: str) -> None:
        """Folds an element-wise consumer into its producer. See `schedule.reverse_inline.reverse_inline`."""
        self.do("reverse_inline", block)

    def hoist(self, block: str, loop: str, name: str | None = None) -> tuple[str, ...]:
        """Hoists loop-invariant parts of a block's value out of a loop. Returns the new buffers. See
        `schedule.hoist.hoist`."""
        return self._apply("hoist", block, loop, name).buffers

    # Reductions

    def decompose_reduction(self, block: str, loop: str, name: str | None = None) -> str:
        """Moves the initialisation of a reduction before a loop. Returns the block that initialises. See
        `schedule.reduction.decompose_reduction`."""
        return self._apply_with_name(lambda new: new.blocks, "decompose_reduction", block, loop, name)

    def rfactor(self, block: str, axis: int, factor: int, name: str | None = None, strands: bool = False) -> str:
        """Reduces in two levels. Returns the buffer of partial results. See `schedule.reduction.rfactor`."""
        return self._apply_with_name(lambda new: new.buffers, "rfactor", block, axis, factor, name, strands)

    def rolling_update(self, block: str, loop: str, name: str | None = None) -> tuple[str, ...]:
        """Fuses a sum into the loop of a reduction that it depends on, rescaling it as the result changes. Returns the
        new blocks. See `schedule.rolling_update.rolling_update`."""
        return self._apply("rolling_update", block, loop, name).blocks

    def cache_value(self, block: str, loop: str, readers: Sequence[str] = (), name: str | None = None) -> str:
        """Computes the value of a reduction once for several blocks. Returns its buffer, which the block of the same
        name fills. See `schedule.cache_value.cache_value`."""
        return self._apply_with_name(lambda new: new.buffers, "cache_value", block, loop, readers, name)

    def round_up(self, loop: str) -> None:
        """Lets the iterations of a loop compute whole tiles in internal buffers. See `schedule.round_up.round_up`."""
        self.do("round_up", loop)

    # Choice and recording of names

    @abstractmethod
    def _record(self, step: Step, func: Func) -> None:
        """Records a step that was tried."""

    def _apply(self, primitive: str, *args: object) -> CreatedNames:
        """Applies and records a primitive; returns the names that it created."""
        step, func = self._try(primitive, *args)
        new = CreatedNames.between(self.func, func)
        self._record(step, func)
        return new

    def _apply_with_names(
        self, pick: Callable[[CreatedNames], tuple[str, ...]], primitive: str, *args: object
    ) -> tuple[str, ...]:
        """Applies a primitive that takes `names` and records it with the chosen ones."""
        step, func = self._try(primitive, *args)
        given = step.arguments.get("names")
        if given is not None:
            self._record(step, func)
            existing = {*self.loops(), *self.blocks, *self.buffers}  # a named remainder loop may not exist
            return tuple(n for n in given if n in existing)
        names = pick(CreatedNames.between(self.func, func))
        self._record(_with_argument(step, "names", names), func)
        return names

    def _apply_with_name(self, pick: Callable[[CreatedNames], tuple[str, ...]], primitive: str, *args: object) -> str:
        """Applies a primitive that takes a `name` and records it with the chosen one."""
        step, func = self._try(primitive, *args)
        given = step.arguments.get("name")
        chosen_name = pick(CreatedNames.between(self.func, func))[0] if given is None else given
        self._record(_with_argument(step, "name", chosen_name), func)
        return chosen_name


def _with_argument(step: Step, name: str, value: Any) -> Step:
    return type(step).of(step.primitive, **{**step.arguments, name: value})


for _name, _primitive in PRIMITIVES.items():
    # help() of a method shows its result, then the documentation of the primitive.
    _method = getattr(Primitives, _name)
    _method.__doc__ = f"{cleandoc(_method.__doc__ or '')}\n\n{cleandoc(_primitive.__doc__ or '')}"
