"""Tasks of the paper's operators on one thread: matrix products and convolutions over padded pictures.

Transposed and grouped convolutions have accesses that tile programs do not have, and no tasks.
"""

from collections.abc import Sequence

from benchmarks.one_thread import one_thread_machine
from benchmarks.paper_eto.operator_sets import PaperOperator, operator_sets
from tilewright.machine import Target
from tilewright.optimize.reuse.reusable_task import ReusableTask, contraction_task

WITHOUT_TASKS = frozenset(("T2D", "GRP"))

SetTasks = Sequence[tuple[PaperOperator, ReusableTask]]
"""Operators of a set with their tasks."""


def set_tasks(name: str, count: int | None = None) -> SetTasks:
    """The operators of a set that have tasks, at most so many."""
    pairs = ((o, operator_task(o)) for o in operator_sets()[name] if o.type not in WITHOUT_TASKS)
    return tuple((o, t) for o, t in pairs if t is not None)[:count]


def operator_task(operator: PaperOperator) -> ReusableTask | None:
    """The task of an operator; weights are constant. None where it has no tile programs."""
    vector = operator.vector
    window = len(operator.stride)
    # strides belong to the last spatial axes of convolutions, in their order
    strides = dict(zip(range(len(vector.spatial) - window, len(vector.spatial)), operator.stride, strict=True))
    constants = () if operator.type == "BMM" else (len(vector.kind.accesses) - 1,)
    task = contraction_task(vector, constants, Target.host(), 1, strides)
    return ReusableTask.of(task, one_thread_machine())
