"""What a machine needs for a kernel at least: its operations at the peak, its bytes at the rate of the memory level
that has to deliver them.

Operations are those of the loops before any transformation. Bytes are those of the operands, once each, and they come
from the nearest level that can still hold what was touched since the operand was touched last: a model of caches that
keep what was used last (reuse distances; Mattson et al., "Evaluation techniques for storage hierarchies", 1970), one
operand a unit, call after call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul

from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Binary, Const, Expr, Load, Unary, Var, const
from tilewright.expr.traversal import loads
from tilewright.loops.ir import Block, Func, IterKind, blocks
from tilewright.machine.model import Level, Machine
from tilewright.tile.operation_cost import computed_nodes, operation_cost

Values = Mapping[Var, Expr]
"""Literals of symbols."""


@dataclass(frozen=True, slots=True)
class OperationCounts:
    """Of one kernel.

    Attributes:
        flops: floating-point operations: two for every term of a sum of products, one for any other operation.
        instructions: per width of an element in bits, how many operations of a lane occupy a unit: one for a term of a
            sum of products, as many as `tile.work` says for functions and divisions, one for others, none for products
            that become part of an addition.
    """

    flops: float
    instructions: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class OperandUse:
    """An operand of a kernel: what memory it is (equal keys are the same memory), and the bytes that are touched."""

    key: object
    bytes: float


@dataclass(frozen=True, slots=True)
class RooflineBound:
    """The least time of a kernel.

    Attributes:
        us: microseconds.
        by: what it is limited by: "compute", or the name of a memory level.
        compute_us: of the operations.
        memory_us: (level, microseconds) of the bytes that pass it, without the first level.
        bytes: of all operands.
    """

    us: float
    by: str
    compute_us: float
    memory_us: tuple[tuple[str, float], ...]
    bytes: float


def size_value(e: Expr, values: Values) -> float:
    """The value of a size; not a number where a symbol has none."""
    found = substitute(e, values)
    return float(found.value) if isinstance(found, Const) else float("nan")


def count_operations(func: Func, values: Values) -> OperationCounts:
    """The operations of a kernel.

    Args:
        func: the untransformed loops.
        values: of its symbols.
    """
    flops, instructions = 0.0, dict[int, float]()
    for block in blocks(func.body):
        points, dtype = size_value(_point_count(block), values), block.body.buffer.dtype
        nodes = computed_nodes(block.body.value, conditions=False)
        if _is_contraction(block, nodes):
            per_point, slots = 2.0, 1.0
        else:
            counted = [e for e in nodes if isinstance(e, Unary | Binary) and e.dtype.kind != "b"]
            per_point = float(len(counted))
            slots = float(sum(max(1, operation_cost(e).throughput) for e in counted) - _fused_products(counted))
        bits = dtype.bits if dtype.is_int else max(32, dtype.bits)
        flops += points * per_point
        instructions[bits] = instructions.get(bits, 0.0) + points * slots
    return OperationCounts(flops, tuple(sorted(instructions.items())))


def touched_bytes(func: Func, values: Values) -> dict[str, float]:
    """Bytes of each parameter that a kernel touches, at most as many as its loops have iterations to touch.

    Args: as for `operations`.
    """
    reached: dict[str, float] = {}
    for block in blocks(func.body):
        points = size_value(_point_count(block), values)
        stores = [s for s in (block.init, block.body) if s is not None]
        found = [e.buffer.name for s in stores for e in loads(s.value)]
        for name in (*found, block.body.buffer.name):
            reached[name] = reached.get(name, 0.0) + points
    sizes = {b.name: (size_value(b.size, values), b.dtype.bytes) for b in func.params}
    return {n: min(size, reached.get(n, 0.0)) * bytes_ for n, (size, bytes_) in sizes.items()}


def source_levels(
    calls: Sequence[Sequence[OperandUse]], machine: Machine, cores: int
) -> list[list[tuple[OperandUse, int]]]:
    """From which level of a machine each operand of each kernel comes, where calls of a model follow one another.

    Args:
        calls: per kernel, in the order of execution, its operands.
        machine: with its levels.
        cores: that work on each kernel.
    """
    room = [_capacity(x, cores) for x in machine.levels]
    found: list[list[tuple[OperandUse, int]]] = []
    recent: dict[object, float] = {}
    for warm in (True, False):
        for touches in calls:
            levels: list[tuple[OperandUse, int]] = []
            for t in touches:
                distance = _reuse_distance(recent, t)
                levels.append((t, next((k for k, r in enumerate(room) if distance <= r), len(room) - 1)))
            for t in touches:
                size = max(t.bytes, recent.pop(t.key, 0.0))
                recent[t.key] = size
            if not warm:
                found.append(levels)
    return found


def _reuse_distance(recent: Mapping[object, float], t: OperandUse) -> float:
    """Bytes that were touched since an operand was, itself included; infinite where it never was."""
    total = t.bytes
    for key in reversed(list(recent)):
        if key == t.key:
            return total
        total += recent[key]
    return float("inf")


def _capacity(level: Level, cores: int) -> float:
    """Bytes that so many cores can keep in a level; all of the last one, main memory."""
    if not level.ways:
        return float("inf")
    return float(level.bytes) * max(1, -(-cores // max(1, level.shared_by)))


def roofline_bound(
    work: OperationCounts, operands: Sequence[tuple[OperandUse, int]], machine: Machine, cores: int
) -> RooflineBound:
    """The least time of a kernel.

    Args:
        work: its operations.
        operands: with the numbers of the levels that they come from (`sources`).
        machine: what runs it.
        cores: of it that are used.
    """
    compute = sum(2.0 * count / machine.gflops(cores, bits) for bits, count in work.instructions) / 1e3
    passing = [(x, sum(t.bytes for t, k in operands if k >= n)) for n, x in enumerate(machine.levels)]
    memory = tuple((x.name, b / x.gbs(cores) / 1e3) for x, b in passing[1:])
    by, us = max((("compute", compute), *memory), key=lambda pair: pair[1])
    return RooflineBound(us, by, compute, memory, sum(t.bytes for t, _ in operands))


def _point_count(block: Block) -> Expr:
    return reduce(mul, (i.extent for i in block.iters), const(1))


def _fused_products(nodes: Sequence[Expr]) -> int:
    """How many products become part of an addition, at most."""
    names = [e.op for e in nodes if isinstance(e, Binary)]
    return min(names.count("mul"), names.count("add") + names.count("sub"))


def _is_contraction(block: Block, nodes: Sequence[Expr]) -> bool:
    """Whether a block adds up products of elements."""
    target = block.body.buffer
    reduces = any(i.kind is IterKind.REDUCE for i in block.iters)
    read = [e for e in nodes if isinstance(e, Load) and e.buffer != target]
    return reduces and len(read) > 1
