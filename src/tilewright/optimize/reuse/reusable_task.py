"""Tasks that can reuse programs of others: their loop vectors and kinds, and the tasks of bridge operators.

The kind of a task is the structure of its main block's accesses and the set of its sketches: strides, paddings and the
epilogue are no part of it. A bridge of products is a plain contraction with the accesses of its kind: unit strides, no
padding and no epilogue.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul

from tilewright.errors import TilewrightError
from tilewright.expr import define
from tilewright.expr.nodes import Expr, const
from tilewright.expr.tensor import Reduction
from tilewright.graph.fusion import fusion_of
from tilewright.loops.lowering import lower_to_loops
from tilewright.machine import Target
from tilewright.machine.model import Machine
from tilewright.optimize.construct.optimizer import problem_for, search_spaces
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.reuse.loop_vector import Access, LoopVector, OperatorKind
from tilewright.optimize.task import Task
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem
from tilewright.tile.program import Sketch

BRIDGE_BITS = 32
"""Width of the elements of operators that have bridges: float32."""


@dataclass(frozen=True, slots=True, eq=False)
class ReusableTask:
    """A task whose tile programs may be reused, or start from others'.

    Attributes:
        task: the kernel, in canonical form.
        machine: with the cores that the task has.
        problem: what is computed, at the representative shape.
        spaces: per lane axis and packing the tile sizes, and the orders of loops.
        vector: its loop vector.
    """

    task: Task
    machine: Machine
    problem: Problem
    spaces: tuple[tuple[SearchSpace, tuple[Sketch, ...]], ...]
    vector: LoopVector

    @staticmethod
    def of(task: Task, machine: Machine) -> "ReusableTask | None":
        """A task with its loop vector; None where it has no tile programs, as row-wise ones.

        Args:
            task: the kernel.
            machine: the machine; of its cores as many count as the task has threads.
        """
        task = task.canonical()
        machine = task.machine_of_threads(machine)
        problem = problem_for(task)
        if problem is None:
            return None
        spaces = tuple((s, tuple(f)) for s, f in search_spaces(problem, task, machine).items())
        return ReusableTask(task, machine, problem, spaces, _loop_vector(problem, spaces)) if spaces else None


def _loop_vector(problem: Problem, spaces: Sequence[tuple[SearchSpace, Sequence[Sketch]]]) -> LoopVector:
    reads = problem.read_operands
    accesses = tuple(_access_of(o) for o in reads)
    sketches = sorted({(s.sketch.lane, s.sketch.packed) for s, _ in spaces})
    flags = [(o.constant, o.element_bytes) for o in reads]
    k_block_axis = next((s.sketch.k_block_axis for s, _ in spaces if s.sketch.k_block_axis is not None), None)
    symbolic = [k for k, a in enumerate(problem.axes) if not a.is_static]
    name = f"{flags} {problem.bits} {problem.operations} {symbolic} {sketches}"
    extents = [tuple(problem.axes[k].extent for k in axes) for axes in (problem.spatial, problem.reduce)]
    return LoopVector(OperatorKind(name, accesses, k_block_axis), extents[0], extents[1])


def _access_of(operand: Operand) -> Access:
    return tuple(tuple(k for k, c in enumerate(row) if c) for row in operand.index)


def bridge_task(vector: LoopVector, like: ReusableTask) -> ReusableTask | None:
    """The task of a bridge; None where its kind is no product of float32 operands, or where its sketches differ.

    Args:
        vector: the loop vector of the bridge.
        like: a task of its kind.
    """
    problem = like.problem
    if problem.bits != BRIDGE_BITS or problem.operations != 1 or not problem.reduce or problem.is_plain_sum:
        return None
    reads = problem.read_operands
    if any(o.element_bytes * 8 != BRIDGE_BITS for o in reads) or not all(a.is_static for a in problem.axes):
        return None
    try:
        constants = [k for k, o in enumerate(reads) if o.constant]
        task = contraction_task(vector, constants, like.task.target, like.task.threads)
    except TilewrightError:
        return None
    bridge = ReusableTask.of(task, like.machine)
    return bridge if bridge is not None and bridge.vector == vector else None


def contraction_task(
    vector: LoopVector, constants: Collection[int], target: Target, threads: int | None, strides: Mapping[int, int] = {}
) -> Task:
    """The task of a sum of products of operands, without padding or epilogue.

    Args:
        vector: its loop nest.
        constants: numbers of the operands whose data is known at compile time.
        target: the target.
        threads: that it runs on.
        strides: of the axes that don't move by one index per iteration.
    """
    accesses, extents = vector.kind.accesses, vector.extents
    shapes = [tuple(1 + sum(strides.get(a, 1) * (extents[a] - 1) for a in d) for d in access) for access in accesses]
    operands = [define.placeholder(shape, "float32", f"operand{k}") for k, shape in enumerate(shapes)]
    reduction = [define.reduce_axis(n, f"r{k}") for k, n in enumerate(vector.reduction)]

    def body(*spatial: Expr) -> Reduction:
        axes: list[Expr] = [*spatial, *reduction]
        moved = [axis * strides.get(a, 1) for a, axis in enumerate(axes)]
        indices = [tuple(sum((moved[a] for a in d), const(0)) for d in access) for access in accesses]
        return define.sum(reduce(mul, [o[i] for o, i in zip(operands, indices, strict=True)]), *reduction)

    _, stages = define.collect_stages([define.compute(vector.spatial, body, "result")])
    func = lower_to_loops("kernel", stages, (*(o.plain_buffer for o in operands), stages[-1].output), ())
    names = frozenset(operands[k].name for k in constants)
    return Task(func, names, target, fusion_of(stages, ["result"]), threads=threads)
