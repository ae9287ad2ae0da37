"""Random steps: a primitive of the whole table with arguments that fit the function more often than not.

Arguments are drawn by the names of the primitive's parameters, which mean the same everywhere (`loop`, `block`,
`buffer`, ...), and by their kinds where a name is not known here: a new primitive takes part without a change.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tests.fuzz.layouts import random_layout

from tilewright.expr.nodes import TRUE, Buffer, Const, MemoryScope, as_expr
from tilewright.expr.traversal import free_vars
from tilewright.loops.access import read_buffers
from tilewright.loops.ir import Block, BlockIter, For, Func, IterKind, walk
from tilewright.schedule.arguments import (
    ArgumentKind,
    ChoiceKind,
    FlagKind,
    IntegerKind,
    LayoutKind,
    NameKind,
    OptionalKind,
    SizeKind,
    TupleKind,
    parameters,
)
from tilewright.schedule.step import PRIMITIVES, Step

FACTORS = (2, 2, 3, 4, 4, 5, 7, 8, 8, 9, 10, 16, 16, 1, 32)

LATE = frozenset(("parallel", "vectorize", "unroll", "virtual_thread", "set_scope", "bind", "pad_storage", "prefetch"))
"""Primitives that others can hardly follow: they are drawn more often towards the end."""

GPU = frozenset(("bind",))
"""Primitives after which no code is made for a CPU."""

PRODUCERS = frozenset(("compute_at", "clone_producer", "inline"))
"""Primitives whose block writes an internal buffer."""

CONSUMERS = frozenset(("reverse_compute_at", "reverse_inline"))
"""Primitives whose block reads one."""

REDUCTIONS = frozenset(("decompose_reduction", "rfactor", "rolling_update", "cache_value"))
"""Primitives whose block has an init."""

INTERNAL = frozenset(("set_scope", "pad_storage", "transform_layout", "store_at"))
"""Primitives whose buffer is internal."""


def random_step(rng: Random, func: Func, late: bool, gpu: bool) -> Step:
    """A primitive with arguments, which may or may not be legal.

    Raises:
        ScheduleError: an argument is of the wrong kind.
    """
    draw = Draw(rng, func)
    at_end = rng.random() < (0.75 if late else 0.15)
    table = [p for p in PRIMITIVES if (p in LATE) == at_end and (gpu or p not in GPU) and draw.candidates(p)]
    name = rng.choice(table or ["split"])
    return Step.of(name, **draw.arguments(name))


class Draw:
    """Draws the arguments of one step on a function."""

    def __init__(self, rng: Random, func: Func) -> None:
        self.rng, self.func = rng, func
        statements = list(walk(func.body))
        self.loops = [s for s, _ in statements if isinstance(s, For)]
        self.blocks = [(s, loops) for s, loops in statements if isinstance(s, Block)]
        self.given: dict[str, Any] = {}
        self.primitive = ""

    def arguments(self, primitive: str) -> dict[str, Any]:
        """Arguments by name; those that have defaults take them now and then."""
        self.primitive = primitive
        declared = parameters(PRIMITIVES[primitive])
        for p in declared.values():
            if not p.required and self.rng.random() < 0.4:
                self.given[p.name] = p.default
            else:
                named: Callable[[], Any] | None = getattr(self, f"for_{p.name}", None)
                self.given[p.name] = named() if named else self.of_kind(p.kind)
        return self.given

    def candidates(self, primitive: str) -> Sequence[Block]:
        """The blocks that a primitive may be about; none where it has nothing to do here."""
        blocks = [b for b, _ in self.blocks]
        internal = set(self.func.allocs)
        if primitive in PRODUCERS:
            return [b for b in blocks if b.body.buffer in internal]
        if primitive in CONSUMERS:
            return [b for b in blocks if internal.intersection(read_buffers(b)) - {b.body.buffer}]
        if primitive == "rolling_update":
            sums = {b.body.buffer for b in blocks if b.init is not None}
            return [b for b in blocks if b.init is not None and sums.intersection(read_buffers(b)) - {b.body.buffer}]
        if primitive in REDUCTIONS:
            return [b for b in blocks if b.init is not None]
        if primitive == "round_up":
            return [b for b in blocks if b.body.buffer in internal and b.predicate is not TRUE]
        if primitive == "store_at":
            return blocks if any(self._common(b) for b in internal) else []
        return blocks if internal or primitive not in INTERNAL else []

    # By the names of parameters

    def for_loop(self) -> str:
        """A loop: one around the block that was chosen, or around those that it hands its values to or takes them from
        where it is to be moved there."""
        block = self._block()
        enclosing_loops = [x for b, loops in self.blocks if self._near(block, b) for x in loops]
        if self.primitive == "rolling_update":
            enclosing_loops = [x for x in enclosing_loops if any(x.var in free_vars(i.binding) for b, _ in self.blocks
                      for i in b.iters if i.kind is IterKind.REDUCE)]  # fmt: skip
        if self.primitive == "round_up":
            guarded = self.candidates("round_up")
            enclosing_loops = [x for b, loops in self.blocks if any(b is g for g in guarded) for x in loops]
        if self.primitive == "store_at":
            enclosing_loops = self._common(self._buffer())
        if enclosing_loops and self.rng.random() < 0.85:
            return self.rng.choice(enclosing_loops).var.name
        return self.rng.choice(self.loops).var.name if self.loops else "none"

    def _near(self, block: Block | None, other: Block) -> bool:
        if block is None:
            return False
        if self.primitive == "compute_with":
            return other is not block
        if self.primitive in PRODUCERS:
            return other is not block and block.body.buffer in read_buffers(other)
        if self.primitive in CONSUMERS or self.primitive == "rolling_update":
            return other is not block and other.body.buffer in read_buffers(block)
        return other is block

    def for_outer(self) -> str:
        """A loop with another one directly inside."""
        outer = [x for x in self.loops if isinstance(x.body, For)] or self.loops
        return self.rng.choice(outer).var.name if outer else "none"

    def for_inner(self) -> str:
        """The loop directly inside the outer one."""
        outer = next((x for x in self.loops if x.var.name == self.given.get("outer")), None)
        return outer.body.var.name if outer is not None and isinstance(outer.body, For) else self.for_loop()

    def for_order(self) -> tuple[str, ...]:
        """Loops of one perfect nest in another order."""
        names = list(self.for_loops())
        self.rng.shuffle(names)
        return tuple(names)

    def for_loops(self) -> tuple[str, ...]:
        """Loops of one perfect nest, directly inside one another."""
        chain: list[For] = []
        here: object = self.rng.choice(self.loops) if self.loops else None
        while isinstance(here, For):
            chain.append(here)
            here = here.body
        return tuple(x.var.name for x in chain[: self.rng.randint(2, 6)])

    def for_block(self) -> str:
        """A block that the primitive may be about."""
        return self.rng.choice(self.candidates(self.primitive) or [b for b, _ in self.blocks]).name

    def for_consumer(self) -> str:
        """A block, most often one that reads what the chosen block writes."""
        block = self._block()
        readers = [b.name for b, _ in self.blocks if block is not None and block.body.buffer in read_buffers(b)]
        return self.rng.choice(readers) if readers and self.rng.random() < 0.8 else self.for_block()

    def for_readers(self) -> tuple[str, ...]:
        """Blocks that read something that the chosen block reads, too."""
        block = self._block()
        inputs = set() if block is None else set(read_buffers(block))
        others = [b.name for b, _ in self.blocks if b is not block and inputs & set(read_buffers(b))]
        return tuple(self.rng.sample(others, self.rng.randint(0, min(2, len(others)))))

    def for_buffer(self) -> str:
        """A buffer: one that the chosen block reads, else an internal one, else any."""
        block = self._block()
        near = [b.name for b in read_buffers(block)] if block is not None else [b.name for b in self.func.allocs]
        if self.primitive == "store_at":
            near = [b.name for b in self.func.allocs if self._common(b)]
        every = [b.name for b in (*self.func.params, *self.func.allocs)]
        return self.rng.choice(near if near and self.rng.random() < 0.9 else every)

    def for_factor(self) -> int:
        """A factor, most often one that divides something."""
        extent = self._extent()
        fitting = [f for f in FACTORS if extent is not None and extent % f == 0 and f > 1]
        return self.rng.choice(fitting if fitting and self.rng.random() < self._care() else FACTORS)

    for_parts = for_multiple = for_factor

    def _care(self) -> float:
        return 0.95 if self.primitive in REDUCTIONS else 0.5

    def for_factors(self) -> tuple[int, ...]:
        """A factor per loop."""
        return tuple(self.rng.choice(FACTORS) for _ in self.given.get("loops", (0, 0)))

    def for_names(self) -> None:
        """The default names."""

    for_name = for_names

    def for_at(self) -> Any:
        """A place to cut a range."""
        extent = next((x.extent for x in self.loops if x.var.name == self.given.get("loop")), as_expr(4))
        return self.rng.choice((extent // 2, extent // 4 * 4, as_expr(1), as_expr(3), extent - 1))

    def for_dim(self) -> int:
        """A dimension of the chosen buffer."""
        buffer = self._buffer()
        return self.rng.randrange(buffer.rank) if buffer is not None and buffer.rank else 0

    def for_axis(self) -> Any:
        """A small number, or a kind of loop."""
        kind = parameters(PRIMITIVES[self.primitive])["axis"].kind
        return self.rng.randrange(max(1, len(self._reduced()))) if isinstance(kind, IntegerKind) else self.of_kind(kind)

    def for_extra(self) -> int:
        """Elements of padding."""
        return self.rng.choice((0, 1, 3, 16))

    def for_distance(self) -> int:
        """Iterations ahead."""
        return self.rng.randint(1, 4)

    def for_scope(self) -> MemoryScope:
        """Where a buffer may live."""
        return self.rng.choice(list(MemoryScope))

    def for_layout(self) -> Any:
        """A layout of the chosen buffer's shape."""
        buffer = self._buffer()
        if buffer is None:
            block = self._block()
            buffer = block.body.buffer if block is not None else None
        return random_layout(self.rng, buffer.shape) if buffer is not None and buffer.rank else None

    # By kind

    def of_kind(self, kind: ArgumentKind) -> Any:
        """Any value of a kind."""
        match kind:
            case NameKind():
                names = [x.var.name for x in self.loops] + [b.name for b, _ in self.blocks]
                return self.rng.choice([*names, *(b.name for b in (*self.func.params, *self.func.allocs))])
            case IntegerKind() | SizeKind():
                return self.rng.choice((0, 1, 1, 2, 3, 4, 8))
            case FlagKind():
                return self.rng.random() < 0.5
            case ChoiceKind(members):
                return self.rng.choice(list(members))
            case TupleKind(item, length):
                count = self.rng.randint(1, 3) if length is None else length
                return tuple(self.of_kind(item) for _ in range(count))
            case OptionalKind(item):
                return self.of_kind(item)
            case LayoutKind():
                return self.for_layout()
            case _:
                return None

    # What the function has

    def _block(self) -> Block | None:
        return next((b for b, _ in self.blocks if b.name == self.given.get("block")), None)

    def _reduced(self) -> list[BlockIter]:
        block = self._block()
        return [] if block is None else [i for i in block.iters if i.kind is IterKind.REDUCE]

    def _buffer(self) -> Buffer | None:
        every = (*self.func.params, *self.func.allocs)
        return next((b for b in every if b.name == self.given.get("buffer")), None)

    def _common(self, buffer: Buffer | None) -> list[For]:
        """The loops around all blocks that use a buffer."""
        users = [loops for b, loops in self.blocks if buffer in (b.body.buffer, *read_buffers(b))]
        return [x for x in users[0] if all(x in loops for loops in users)] if users else []

    def _extent(self) -> int | None:
        """The extent that a factor is for, where it is a literal."""
        reduced, axis = self._reduced(), self.given.get("axis")
        buffer, dim = self._buffer(), self.given.get("dim")
        extent = next((x.extent for x in self.loops if x.var.name == self.given.get("loop")), None)
        if isinstance(axis, int) and axis < len(reduced):
            extent = reduced[axis].extent
        elif buffer is not None and isinstance(dim, int) and dim < buffer.rank:
            extent = buffer.shape[dim]
        return int(extent.value) if isinstance(extent, Const) else None
