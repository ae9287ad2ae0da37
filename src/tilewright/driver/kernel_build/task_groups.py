"""Groups of tasks that one process does one after the other, because their constructions advance in lock step."""

from collections.abc import Hashable, Sequence

from tilewright.graph.fusion import FusionPattern
from tilewright.loops.ir import blocks
from tilewright.optimize.task import Task

MAX_GROUP = 8
"""Tasks of a group at most: each holds megabytes while it is constructed."""

GROUPS_PER_JOB = 2
"""Groups that each process should get at least, so that none waits for another one for long at the end."""


def task_groups(tasks: Sequence[Task], is_alone: Sequence[bool], jobs: int) -> list[list[int]]:
    """The numbers of tasks by group, those with most work first: kernels that may differ only in their sizes are
    together, in even parts.

    Args:
        tasks: the tasks, those with most work first.
        is_alone: which of them are groups of their own, as they are not constructed.
        jobs: processes that do them.
    """
    alike: dict[Hashable, list[int]] = {}
    for k, task in enumerate(tasks):
        alike.setdefault(k if is_alone[k] else _alike_key(task, k), []).append(k)
    limit = MAX_GROUP if jobs == 1 else max(1, min(MAX_GROUP, len(tasks) // (GROUPS_PER_JOB * jobs)))
    groups = [part for members in alike.values() for part in _even_parts(members, limit)]
    is_fused = [t.fusion.pattern is FusionPattern.CHAIN for t in tasks]
    return sorted(groups, key=lambda group: (not is_fused[group[0]], -len(group)))


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
