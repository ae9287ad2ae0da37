"""Online sums of tile trees, as softmax's in attention: what their kernels compute per term, per chunk and per row.

A sum that is fused into the loop over chunks of another reduction (`schedule.rolling_update`) adds terms to a buffer of
its own, which is rescaled before every chunk; factors without the reduction are applied, and the result is stored,
after the last one.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from tilewright.expr.nodes import Binary, Load
from tilewright.expr.operations import binary
from tilewright.loops.ir import Block, Func, IterKind, blocks
from tilewright.schedule.online_rescale import split_invariant_factors
from tilewright.schedule.rewrite_tree import map_blocks
from tilewright.tile.operand import Operand
from tilewright.tile.operation_cost import FUNCTION, operation_cost
from tilewright.tile.problem import Problem

RESCALING_OPERATIONS = 3
"""Of rescaling an element: two selects, for what is the same and for what was nothing yet, and a product."""


@lru_cache(maxsize=64)
def with_finished_factors_apart(func: Func, online: tuple[str, ...]) -> tuple[Func, Mapping[str, int]]:
    """A function whose online sums add up terms without the factors that are applied after the last chunk, such as the
    division of softmax, and the instructions of these factors per element of every such sum.

    Args:
        func: untransformed loops.
        online: names of the online statements.
    """
    running = {b.body.buffer for b in blocks(func.body) if b.init is not None}
    finishing: dict[str, int] = {}

    def terms_alone(b: Block) -> Block:
        match b.body.value:
            case Binary("add", Load() as total, term) if b.name in online and b.init is not None:
                reduced = [i.var for i in b.iters if i.kind is IterKind.REDUCE]
                factored = split_invariant_factors(term, reduced, running - {b.body.buffer})
                applied = (total * x if op == "mul" else total / x for op, x in factored.invariant_factors)
                finishing[b.name] = sum(operation_cost(x).throughput for x in applied)
                return replace(b, body=replace(b.body, value=binary("add", total, factored.core)))
            case _:
                return b

    body = map_blocks(func.body, terms_alone) if online else func.body
    return replace(func, body=body), finishing


def rescaling_problem(added: Problem, buffer: str, shared: int) -> Problem:
    """The problem of rescaling a sum in its place.

    Args:
        added: of adding partial sums to it.
        buffer: of the sum.
        shared: elements that a row sums up: LLVM moves the factor of the row, an exponential, out of the loops over
            them.
    """
    total, _, written = (replace(o, buffer=buffer) for o in added.operands)
    operations = RESCALING_OPERATIONS + -(-FUNCTION.throughput // max(1, shared))
    return replace(added, operands=(total, written), operations=operations)


def store_problem(name: str, problem: Problem, sums: Operand, finishing: int) -> Problem:
    """The problem of copying an online sum to the result.

    Args:
        name: of the statement.
        problem: of the sum, as if it were written to the result.
        sums: the sum's own buffer, as it is written.
        finishing: instructions per element of the factors that are applied before.
    """
    accesses = (replace(sums, written=False), problem.results[-1])
    indices = [tuple(tuple(row[k] for k in problem.spatial) for row in o.index) for o in accesses]
    operands = tuple(replace(o, index=x) for o, x in zip(accesses, indices, strict=True))
    axes = tuple(problem.axes[k] for k in problem.spatial)
    return Problem(name, name, axes, operands, (), 1 + finishing, problem.bits)
