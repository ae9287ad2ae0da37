"""Fully masked iterations of attention, as tiles of keys beyond the diagonal: what remains of one when it is skipped.

In a loop over tiles of keys, scores that a mask excludes by its indices are -inf. Where a condition on the loops says
that those of a whole iteration are, the running maximum stays, weights are 0, and sums stay as they are, but for
0 * v = NaN where a value v is infinite or NaN. So the iteration comes to

    total[d] = sum over its keys k of 0 * v[k, d]          acc[d, i] += total[d] for every row i

of which the first takes a share of 1 / rows of the work that is left out. `lower/skip_masked_tiles.py` makes a branch
of it; the verifier derives the same and compares (`merge_copies.py`).

What is taken for granted: a buffer that only one iteration accesses is written before it is read (the verifier proves
it of blocks, not of elements); and a running maximum that is NaN made all sums that depend on it NaN as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import reduce

from tilewright.expr.algebra.bounds import Bounds, facts_of
from tilewright.expr.algebra.polynomial import polynomial
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.algebra.simplify import simplify, substitute
from tilewright.expr.nodes import TRUE, Binary, Buffer, Const, Expr, Load, MemoryScope, Select, Unary, Var, const
from tilewright.expr.operations import conjunction, minimum
from tilewright.expr.pattern import is_masked_score
from tilewright.expr.traversal import conjuncts, free_vars, has_loads, loads
from tilewright.loops.ir import Block, BlockIter, For, Func, IterKind, LoopKind, Seq, Stmt, Store, blocks, seq, walk

MIN_LANES, MAX_LANES = 16, 64
"""Elements that the loops over totals compute at a time: at least, where that leaves a partial last vector, and at
most."""


class UniformValue(Enum):
    """What all elements of a buffer are in a masked iteration."""

    MINUS_INFINITY = auto()
    """-inf."""

    ZERO = auto()
    """0."""


@dataclass(frozen=True, slots=True)
class MaskedIterations:
    """What masked iterations of a loop come to.

    Attributes:
        is_live: whether an iteration has a score that is not masked, over the loop's variable and those around it.
        rest: what remains of the others.
        totals: the buffers that this writes and reads alone.
    """

    is_live: Expr
    rest: Stmt
    totals: tuple[Buffer, ...]


def masked_iterations(func: Func, loop: For, enclosing: Sequence[For]) -> MaskedIterations | None:
    """What masked iterations of a serial loop come to; None where it has none, or they change something else.

    Args:
        func: the function.
        loop: the loop.
        enclosing: the loops around it, outermost first.
    """
    placed = [(b, inner) for b, inner in walk(loop.body) if isinstance(b, Block)]
    masks = {b.name: (b, b.body.value, inner) for b, inner in placed if is_masked_score(b.body.value)}
    if loop.kind is not LoopKind.SERIAL or not masks:
        return None
    bounds = Bounds.from_loops((x.var, x.extent) for x in (*enclosing, loop))
    live = {name: _live_condition(*x, loop, bounds) for name, x in masks.items()}
    conditions = {c for c in live.values() if c is not None}
    if len(conditions) != 1 or can_prove(is_live := conditions.pop(), bounds):
        return None
    masking = frozenset(name for name, c in live.items() if c is is_live)
    is_some_live = _holds_somewhere(is_live, loop, enclosing)
    return _Iteration(masking, _local_buffers(func, loop), is_live, bounds, is_some_live).result(placed)


def _holds_somewhere(is_live: Expr, loop: For, enclosing: Sequence[For]) -> bool:
    """Whether there is an iteration of a loop, wherever that is entered, in which a condition is proved to hold: at an
    end of its range, or the last one that one of the comparisons allows, as at the diagonal of a sliding window."""
    bounds = Bounds.from_loops((x.var, x.extent) for x in enclosing)
    last = loop.extent - 1
    tried: list[Expr] = [const(0), last]
    for c in conjuncts(is_live):
        slack = facts_of(c, bounds.with_loop(loop.var, loop.extent))
        for f in slack:
            step = substitute(f, {loop.var: const(1)}) - substitute(f, {loop.var: const(0)})
            if isinstance(step, Const) and step.value < 0:
                tried.append(minimum(substitute(f, {loop.var: const(0)}) // -int(step.value), last))
    return any(can_prove(substitute(is_live, {loop.var: k}), bounds) for k in tried)


def _live_condition(block: Block, mask: Expr, inner: Sequence[For], loop: For, bounds: Bounds) -> Expr | None:
    """The condition that a mask leaves a score of an iteration, as far as comparisons of indices tell; None where these
    do not depend on the iteration."""
    bindings = {i.var: i.binding for i in block.iters}
    within = reduce(lambda b, x: b.with_loop(x.var, x.extent), inner, bounds)
    conditions: list[Expr] = []
    for c in conjuncts(mask.cond) if isinstance(mask, Select) else ():
        facts = () if has_loads(c) else facts_of(substitute(c, bindings, within), within)
        largest = [_upper_end(f, inner) for f in facts]
        conditions += [simplify(x >= 0, bounds) for x in largest if x is not None and loop.var in free_vars(x)]
    return conjunction(*conditions) if conditions else None


def _upper_end(e: Expr, inner: Sequence[For]) -> Expr | None:
    """The largest value of an expression while some loops run; None where it is not linear in their variables."""
    for loop in reversed(inner):
        terms = [(m, k) for m, k in polynomial(e).items() if any(loop.var in free_vars(a) for a in m)]
        if not terms:
            continue
        if len(terms) != 1 or terms[0][0] != (loop.var,):
            return None
        e = substitute(e, {loop.var: loop.extent - 1 if terms[0][1] > 0 else const(0)})
    return e


def _local_buffers(func: Func, loop: For) -> frozenset[str]:
    """The internal buffers of which every iteration of a loop writes what it reads, and nothing else reads what it
    writes: where the statements beside the loop access them, they write them first as well."""
    internal = {a.name for a in func.allocs}
    own = {b.body.buffer.name for b in blocks(loop.body)} & internal
    beside = _statements_beside(func.body, loop.var)
    return frozenset(n for n in own if all(_first_access_is_store(s, n) for s in (loop.body, *beside)))


def _statements_beside(s: Stmt, var: Var) -> list[Stmt]:
    """The statements around a loop that it is not inside of, each as large as possible."""
    if isinstance(s, For):
        return [] if s.var is var else _statements_beside(s.body, var)
    if isinstance(s, Block):
        return []
    parts = s.stmts if isinstance(s, Seq) else (s.then, s.otherwise)
    around = [x for x in parts if any(isinstance(y, For) and y.var is var for y, _ in walk(x))]
    return [x for x in parts if x not in around] + [x for y in around for x in _statements_beside(y, var)]


def _first_access_is_store(s: Stmt, name: str) -> bool:
    """Whether a statement stores to a buffer before it reads any of it, if it does."""
    for b in blocks(s):
        if any(x.buffer.name == name for x in loads(b.body.value)):
            return False
        if b.body.buffer.name == name:
            return True
    return True


@dataclass(slots=True)
class _Iteration:
    """A masked iteration, block by block.

    Attributes:
        masking: names of the blocks whose scores are masked.
        local: names of the buffers of which it writes what it reads.
        is_live: the condition that fails.
        bounds: that hold in it.
        is_some_live: whether every row has scores in other iterations, so that one that is masked whole becomes NaN
            there, as its maximum is -inf.
        constants: what the elements of local buffers are; None for what is not constant.
        saved: by local buffer that holds earlier elements of another one, that one.
    """

    masking: frozenset[str]
    local: frozenset[str]
    is_live: Expr
    bounds: Bounds
    is_some_live: bool
    constants: dict[str, UniformValue | None] = field(default_factory=dict[str, UniformValue | None])
    saved: dict[str, Load] = field(default_factory=dict[str, Load])

    def result(self, placed: Sequence[tuple[Block, Sequence[For]]]) -> MaskedIterations | None:
        """What the blocks come to; None where one changes something else than by products of 0."""
        rests: list[_Rest] = []
        for b, inner in placed:
            if b.body.buffer.name in self.local:
                self._note_local(b)
                continue
            operand = self._added_zero(b)
            if operand is None:
                return None
            if isinstance(operand, Load):
                rest = _Rest.of(b, inner, operand, self.bounds)
                if rest is None:
                    return None
                rests.append(rest)
        if not rests:
            return None
        rest = seq(*(s for x in rests for s in x.stmts()))
        return MaskedIterations(self.is_live, rest, tuple(x.total for x in rests))

    def _note_local(self, b: Block) -> None:
        """Notes what a local buffer holds after a block."""
        name, value = b.body.buffer.name, b.body.value
        constant = UniformValue.MINUS_INFINITY if b.name in self.masking else self._constant(value)
        is_first = name not in self.constants
        self.constants[name] = constant if is_first or self.constants[name] is constant else None
        if isinstance(value, Load) and value.buffer.name not in self.local and value.indices == b.body.indices:
            if is_first:
                self.saved[name] = value
        else:
            self.saved.pop(name, None)

    def _constant(self, e: Expr) -> UniformValue | None:
        """What a value is in a masked iteration; None where that is not known."""
        match e:
            case Load(buffer):
                return self.constants.get(buffer.name)
            case Const(value):
                return UniformValue.ZERO if value == 0 else None
            case Select(_, a, b):
                arms = {self._constant(a), self._constant(b)}
                return arms.pop() if len(arms) == 1 else None
            case Unary("exp", Binary("sub", a, b)):
                is_zero = self._constant(a) is UniformValue.MINUS_INFINITY and self._is_shift(b)
                return UniformValue.ZERO if is_zero else None
            case _:
                return None

    def _is_shift(self, e: Expr) -> bool:
        """Whether -inf less a value is -inf, or NaN where the row's sums are NaN anyway."""
        return self.is_some_live and isinstance(e, Load)

    def _added_zero(self, b: Block) -> Expr | None:
        """How a block changes its element: not at all (true), or by products of 0 and an operand; None otherwise."""
        target = Load(b.body.buffer, b.body.indices)
        if b.init is not None:
            return None
        return self._change(b.body.value, target)

    def _change(self, value: Expr, target: Load) -> Expr | None:
        """See `_added_zero`."""
        match value:
            case Load() if value is target:
                return TRUE
            case Binary("max", a, b) if target in (a, b):
                return TRUE if self._constant(b if a is target else a) is UniformValue.MINUS_INFINITY else None
            case Binary("add", a, b) if target in (a, b):
                return self._zero_factor(b if a is target else a)
            case Select(Binary("eq", a, b), then) if self._now(a) is self._now(b):
                return self._change(then, target)
            case _:
                return None

    def _now(self, e: Expr) -> Expr:
        """A load of a saved element as one of the element itself, which did not change."""
        saved = self.saved.get(e.buffer.name) if isinstance(e, Load) else None
        return Load(saved.buffer, e.indices) if saved is not None and isinstance(e, Load) else e

    def _zero_factor(self, e: Expr) -> Expr | None:
        """The other factor of a product of 0, true for 0 itself; None for what may be something else."""
        if self._constant(e) is UniformValue.ZERO:
            return TRUE
        if isinstance(e, Binary) and e.op == "mul":
            for zero, other in ((e.a, e.b), (e.b, e.a)):
                if self._constant(zero) is UniformValue.ZERO and isinstance(other, Load):
                    return other
        return None


@dataclass(frozen=True, slots=True)
class _Rest:
    """Products of 0 that a sum adds, as totals that all rows add.

    Attributes:
        block: the sum.
        operand: the factor that is not 0.
        columns: the iteration variable that both the operand and the result have besides those of outer loops.
        rows: that of the result alone; None where there is a single row.
        keys: that of the operand alone.
        starts: the first values of these in the iteration.
        sizes: how many there are.
        bounds: that hold in the iteration.
    """

    block: Block
    operand: Load
    columns: BlockIter
    rows: BlockIter | None
    keys: BlockIter
    starts: Mapping[Var, Expr]
    sizes: Mapping[Var, int]
    bounds: Bounds

    @staticmethod
    def of(block: Block, inner: Sequence[For], operand: Load, bounds: Bounds) -> "_Rest | None":
        """The rest of a sum; None where its axes are not those of attention, or it has other conditions than the
        ends of its axes."""
        moving = {x.var for x in inner}
        iters = [i for i in block.iters if free_vars(i.binding) & moving]
        read = {v for i in operand.indices for v in free_vars(i)}
        keys = [i for i in iters if i.kind is IterKind.REDUCE and i.var in read]
        columns = [i for i in iters if i.kind is IterKind.SPATIAL and i.var in read]
        rows = [i for i in iters if i.kind is IterKind.SPATIAL and i.var not in read]
        if len(keys) != 1 or len(columns) != 1 or len(rows) > 1 or len(iters) != len(rows) + 2:
            return None
        low = {i.var: _lower_end(i.binding, inner) for i in iters}
        high = {i.var: _upper_end(i.binding, inner) for i in iters}
        starts, sizes = dict[Var, Expr](), dict[Var, int]()
        for v in low:
            a, b = low[v], high[v]
            size = None if a is None or b is None else simplify(b - a + 1, bounds)
            if a is None or not isinstance(size, Const):
                return None
            starts[v], sizes[v] = a, int(size.value)
        ends = {simplify(i.binding < i.extent, bounds) for i in block.iters}
        if any(simplify(c, bounds) not in ends for c in conjuncts(block.predicate)):
            return None
        return _Rest(block, operand, columns[0], rows[0] if rows else None, keys[0], starts, sizes, bounds)

    @property
    def total(self) -> Buffer:
        """The products of 0, summed up over keys."""
        shape = (const(self.sizes[self.columns.var]),)
        return Buffer(f"{self.block.body.buffer.name}_masked", shape, self.block.body.buffer.dtype, MemoryScope.STACK)

    def stmts(self) -> tuple[Stmt, ...]:
        """The loops that compute the totals, and those that add them to the results of all rows."""
        zero, total = const(0, self.total.dtype), self._total_element
        cleared = Store(self.total, total.indices, zero)
        product = self.operand * zero
        added = Store(self.total, total.indices, Binary("add", total, product))
        target = Load(self.block.body.buffer, self.block.body.indices)
        finished = Store(target.buffer, target.indices, Binary("add", target, total))
        outer = [i for i in self.block.iters if i not in (self.rows, self.keys, self.columns)]
        read = {v for i in self.operand.indices for v in free_vars(i)}
        return (
            self._block_in_loops("init", cleared, (self.columns,), ()),
            self._block_in_loops("total", added, (self.keys, self.columns), [i for i in outer if i.var in read]),
            self._block_in_loops(
                "add", finished, (self.columns,) if self.rows is None else (self.columns, self.rows), outer
            ),
        )

    @property
    def _total_element(self) -> Load:
        start = self.starts[self.columns.var]
        return Load(self.total, (self.columns.var - start,))

    def _block_in_loops(
        self, suffix: str, store: Store, iters: Sequence[BlockIter], outer: Sequence[BlockIter]
    ) -> Stmt:
        """A block over some of the axes, the last one in vectors, with names of its own."""
        name = f"{self.block.name}_masked_{suffix}"
        loops: list[tuple[Var, int, LoopKind]] = []
        bindings: dict[Var, Expr] = {}
        conditions: list[Expr] = []
        for i in iters:
            size, position = self.sizes[i.var], const(0)
            step = _lanes(size) if i is iters[-1] else 1
            if size > step:
                var = Var(f"{name}_{i.var.name}")
                loops.append((var, -(-size // step), LoopKind.SERIAL))
                position = var * step
            if step > 1:
                var = Var(f"{name}_{i.var.name}_lane")
                loops.append((var, step, LoopKind.VECTORIZED))
                position = position + var
            bindings[i.var] = self.starts[i.var] + position
            conditions += [position < size, bindings[i.var] < i.extent]
        inside = reduce(lambda b, x: b.with_loop(x[0], const(x[1])), loops, self.bounds)
        predicate = conjunction(*(c for c in conditions if not can_prove(c, inside)))
        new: dict[Var, Expr] = {}
        own: list[BlockIter] = []
        for i in (*outer, *iters):
            own.append(replace(i, var=Var(f"{name}_{i.var.name}_v"), binding=bindings.get(i.var, i.binding)))
            new[i.var] = own[-1].var
        indices = tuple(substitute(i, new) for i in store.indices)
        result: Stmt = Block(
            name, tuple(own), Store(store.buffer, indices, substitute(store.value, new)), None, predicate
        )
        for var, extent, kind in reversed(loops):
            result = For(var, const(extent), kind, result)
        return result


def _lanes(size: int) -> int:
    """Elements of a vector: a power of two, which divides the size where that does not make it narrow."""
    dividing = min(MAX_LANES, size & -size)
    return dividing if dividing >= MIN_LANES else min(MAX_LANES, 1 << (size.bit_length() - 1))


def _lower_end(e: Expr, inner: Sequence[For]) -> Expr | None:
    """The least value of an expression while some loops run; None where it is not linear in their variables."""
    negative = _upper_end(const(0) - e, inner)
    return None if negative is None else const(0) - negative
