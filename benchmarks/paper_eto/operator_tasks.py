"""Tasks of the paper's operators on one thread: matrix products and convolutions over padded pictures.

Transposed and grouped convolutions have accesses that tile programs do not have, and no tasks.
"""

from functools import lru_cache, reduce
from operator import mul

from benchmarks.paper_eto.operator_sets import PaperOperator, operator_sets
from tilewright.expr import define
from tilewright.expr.nodes import Expr, const
from tilewright.expr.tensor import Reduction
from tilewright.graph.fusion import fusion_of
from tilewright.loops.lowering import lower_to_loops
from tilewright.machine import Target
from tilewright.machine.calibration_store import machine_for
from tilewright.machine.model import Machine
from tilewright.optimize.reuse.task_kinds import ReusableTask
from tilewright.optimize.task import Task

WITHOUT_TASKS = frozenset(("T2D", "GRP"))


@lru_cache(maxsize=1)
def one_thread_machine() -> Machine:
    """This machine with one core."""
    return machine_for(Target.host()).with_cores(1)


def set_tasks(name: str, count: int | None = None) -> tuple[tuple[PaperOperator, ReusableTask], ...]:
    """The operators of a set that have tasks, at most so many."""
    pairs = ((o, operator_task(o)) for o in operator_sets()[name] if o.type not in WITHOUT_TASKS)
    return tuple((o, t) for o, t in pairs if t is not None)[:count]


def operator_task(operator: PaperOperator) -> ReusableTask | None:
    """The task of an operator; weights are constant. None where it has no tile programs."""
    vector = operator.vector
    window = len(operator.stride)
    # strides belong to the last spatial axes of convolutions, in their order
    strides = dict(zip(range(len(vector.spatial) - window, len(vector.spatial)), operator.stride, strict=True))
    accesses, extents = vector.kind.accesses, vector.extents
    shapes = [tuple(1 + sum(strides.get(a, 1) * (extents[a] - 1) for a in d) for d in access) for access in accesses]
    operands = [define.placeholder(shape, "float32", f"operand{k}") for k, shape in enumerate(shapes)]
    reduction = [define.reduce_axis(n, f"r{k}") for k, n in enumerate(vector.reduction)]

    def body(*spatial: Expr) -> Reduction:
        axes: list[Expr] = [*spatial, *reduction]
        terms = [[tuple(axes[a] * strides.get(a, 1) for a in d) for d in access] for access in accesses]
        indices = [tuple(sum(terms_of, const(0)) for terms_of in access) for access in terms]
        return define.sum(reduce(mul, [o[i] for o, i in zip(operands, indices, strict=True)]), *reduction)

    _, stages = define.collect_stages([define.compute(vector.spatial, body, "result")])
    func = lower_to_loops("kernel", stages, (*(o.plain_buffer for o in operands), stages[-1].output), ())
    constants = frozenset((operands[-1].name,)) if operator.type != "BMM" else frozenset[str]()
    task = Task(func, constants, Target.host(), fusion_of(stages, ["result"]), threads=1)
    return ReusableTask.of(task, one_thread_machine())
