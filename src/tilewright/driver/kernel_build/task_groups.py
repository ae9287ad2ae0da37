"""Groups of tasks that one process does one after the other, because their constructions advance in lock step."""

from collections.abc import Hashable, Sequence

from tilewright.graph.fusion import FusionPattern
from tilewright.loops.ir import blocks
from tilewright.optimize.task import Task

MAX_GROUP = 8
"""Tasks of a group at most: each holds megabytes while it is constructed."""

GROUPS_PER_JOB = 2
"""Groups that each process should get at least, so that none waits for another one for long at the end."""

CHAIN_WORK, ELEMENTWISE_WORK = 2.0, 0.25
"""Work of a fused chain, and of a kernel without a reduction, in that of a kernel with one. Kernels of ResNet-50 and
MobileNetV2 take 0.2 to 0.4 s for a chain of convolutions, 0.2 for one of a group of convolutions, and 0.03 to 0.1
without a reduction."""


def task_groups(tasks: Sequence[Task], is_alone: Sequence[bool], jobs: int) -> list[list[int]]:
    """The numbers of tasks by group, those with most work first, so that no process waits for another one for long at
    the end: kernels that may differ only in their sizes are together, in even parts.

    Args:
        tasks: the tasks.
        is_alone: which of them are groups of their own, as they are not constructed.
        jobs: processes that do them.
    """
    alike: dict[Hashable, list[int]] = {}
    for k, task in enumerate(tasks):
        alike.setdefault(k if is_alone[k] else _alike_key(task, k), []).append(k)
    limit = MAX_GROUP if jobs == 1 else max(1, min(MAX_GROUP, len(tasks) // (GROUPS_PER_JOB * jobs)))
    groups = [part for members in alike.values() for part in _even_parts(members, limit)]
    return sorted(groups, key=lambda group: -sum(_work(tasks[k]) for k in group))


def _work(task: Task) -> float:
    """The work of a task, in that of a kernel with one reduction."""
    if task.fusion.pattern is FusionPattern.CHAIN:
        return CHAIN_WORK
    return 1.0 if any(b.init is not None for b in blocks(task.func.body)) else ELEMENTWISE_WORK


def _alike_key(task: Task, number: int) -> Hashable:
    """What kernels have in common that may differ only in their sizes; a fused chain is searched by itself."""
    if task.fusion.pattern is FusionPattern.CHAIN:
        return number
    iters = tuple([tuple([i.kind for i in b.iters]) for b in blocks(task.func.body)])
    params = tuple([(len(p.shape), p.dtype.name, p.name in task.constants) for p in task.func.params])
    return task.fusion.pattern, iters, params


def _even_parts(members: list[int], limit: int) -> list[list[int]]:
    """Parts of at most so many members, whose lengths differ by one at most."""
    count = -(-len(members) // limit)
    return [members[k::count] for k in range(count)]
