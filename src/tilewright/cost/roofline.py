"""Roofline bound of a kernel: its operations at peak rate, its bytes at the bandwidth of the level they come from.

Operations are those of the loops before any transformation. Bytes are those of the operands, once each, from the
nearest level that still holds what was touched since the operand's last use: an LRU cache model by reuse distances
(Mattson et al., "Evaluation techniques for storage hierarchies", 1970), with whole operands as units, call after call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.cost.block_work import is_contraction, iteration_count
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.nodes import Binary, Const, Expr, Unary, Var
from tilewright.expr.traversal import loads
from tilewright.loops.ir import Func, blocks
from tilewright.machine.model import Level, Machine
from tilewright.tile.operation_cost import computed_nodes, operation_cost

Values = Mapping[Var, Expr]
"""Literal values of symbols."""


@dataclass(frozen=True, slots=True)
class OperationCounts:
    """Operations of one kernel.

    Attributes:
        flops: floating-point operations: two for every term of a contraction, one for any other operation.
        instructions: per element width in bits, the number of operations of a lane that occupy an execution unit: one
            for a term of a contraction, the throughput by `tile.operation_cost` for functions and divisions, one for
            others, none for products that become part of a multiply-add.
    """

    flops: float
    instructions: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class OperandUse:
    """One use of memory by a kernel.

    Attributes:
        key: identifies the memory.
        bytes: bytes that are touched.
    """

    key: object
    bytes: float


@dataclass(frozen=True, slots=True)
class RooflineBound:
    """The lower bound of a kernel's time.

    Attributes:
        us: microseconds.
        by: the limiting resource: "compute", or the name of a memory level.
        compute_us: microseconds of the operations.
        memory_us: (level, microseconds) of the bytes that pass it, without the first level.
        bytes: bytes of all operands.
    """

    us: float
    by: str
    compute_us: float
    memory_us: tuple[tuple[str, float], ...]
    bytes: float


def size_value(e: Expr, values: Values) -> float:
    """The value of a size; NaN where a symbol has none."""
    value = substitute(e, values)
    return float(value.value) if isinstance(value, Const) else float("nan")


def count_operations(func: Func, values: Values) -> OperationCounts:
    """The operations of a kernel.

    Args:
        func: the untransformed loops.
        values: values of its symbols.
    """
    flops, instructions = 0.0, dict[int, float]()
    for block in blocks(func.body):
        points, dtype = size_value(iteration_count(block), values), block.body.buffer.dtype
        nodes = computed_nodes(block.body.value, conditions=False)
        if is_contraction(block, nodes):
            per_point, slots = 2.0, 1.0
        else:
            operations = [e for e in nodes if isinstance(e, Unary | Binary) and e.dtype.kind != "b"]
            per_point = float(len(operations))
            occupied = sum(max(1, operation_cost(e).throughput) for e in operations)
            slots = float(occupied - _fused_products(operations))
        bits = dtype.bits if dtype.is_int else max(32, dtype.bits)
        flops += points * per_point
        instructions[bits] = instructions.get(bits, 0.0) + points * slots
    return OperationCounts(flops, tuple(sorted(instructions.items())))


def touched_bytes(func: Func, values: Values) -> dict[str, float]:
    """Bytes of each parameter that a kernel touches, at most one element per iteration of the blocks that use it.

    Args:
        func, values: as for `count_operations`.
    """
    touched: dict[str, float] = {}
    for block in blocks(func.body):
        points = size_value(iteration_count(block), values)
        stores = [s for s in (block.init, block.body) if s is not None]
        loaded = [e.buffer.name for s in stores for e in loads(s.value)]
        for name in (*loaded, block.body.buffer.name):
            touched[name] = touched.get(name, 0.0) + points
    sizes = {b.name: (size_value(b.size, values), b.dtype.bytes) for b in func.params}
    return {n: min(size, touched.get(n, 0.0)) * element_bytes for n, (size, element_bytes) in sizes.items()}


def source_levels(
    calls: Sequence[Sequence[OperandUse]], machine: Machine, cores: int
) -> list[list[tuple[OperandUse, int]]]:
    """The memory level that each operand of each kernel comes from, in repeated calls of a model.

    Args:
        calls: per kernel, in execution order, its operands.
        machine: with its levels.
        cores: number of cores that work on each kernel.
    """
    capacities = [_capacity(x, cores) for x in machine.levels]
    sources: list[list[tuple[OperandUse, int]]] = []
    recent: dict[object, float] = {}
    for is_warmup in (True, False):
        for operands in calls:
            levels: list[tuple[OperandUse, int]] = []
            for t in operands:
                distance = _reuse_distance(recent, t)
                level = next((k for k, size in enumerate(capacities) if distance <= size), len(capacities) - 1)
                levels.append((t, level))
            for t in operands:
                size = max(t.bytes, recent.pop(t.key, 0.0))
                recent[t.key] = size
            if not is_warmup:
                sources.append(levels)
    return sources


def _reuse_distance(recent: Mapping[object, float], t: OperandUse) -> float:
    """Bytes that were touched since an operand's last use, itself included; infinite where there was none."""
    total = t.bytes
    for key in reversed(list(recent)):
        if key == t.key:
            return total
        total += recent[key]
    return float("inf")


def _capacity(level: Level, cores: int) -> float:
    """Bytes of a level that some cores can use together; infinite for main memory."""
    if not level.ways:
        return float("inf")
    return float(level.bytes) * max(1, -(-cores // max(1, level.shared_by)))


def roofline_bound(
    work: OperationCounts, operands: Sequence[tuple[OperandUse, int]], machine: Machine, cores: int
) -> RooflineBound:
    """The lower bound of a kernel's time.

    Args:
        work: its operations.
        operands: with the levels that they come from (`source_levels`).
        machine: the machine.
        cores: number of cores that work on the kernel.
    """
    compute = sum(2.0 * count / machine.gflops(cores, bits) for bits, count in work.instructions) / 1e3
    bytes_by_level = [(x, sum(t.bytes for t, k in operands if k >= n)) for n, x in enumerate(machine.levels)]
    memory = tuple((x.name, b / x.gbs(cores) / 1e3) for x, b in bytes_by_level[1:])
    by, us = max((("compute", compute), *memory), key=lambda pair: pair[1])
    return RooflineBound(us, by, compute, memory, sum(t.bytes for t, _ in operands))


def _fused_products(nodes: Sequence[Expr]) -> int:
    """Maximum number of products that become part of a multiply-add."""
    names = [e.op for e in nodes if isinstance(e, Binary)]
    return min(names.count("mul"), names.count("add") + names.count("sub"))
