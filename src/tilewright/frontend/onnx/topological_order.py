"""Stable topological order."""

from collections.abc import Collection, Sequence


def stable_topological_order(predecessors: Sequence[Collection[int]]) -> list[int]:
    """A topological order that keeps the given order where it can, in linear time.

    It is the order that results when the list is walked repeatedly and each entry is taken as soon as all of its
    predecessors have been.

    Args:
        predecessors: for each position the positions that must come before it.

    Returns:
        Positions; those on cycles, and those that depend on them, are missing.
    """
    successors: list[list[int]] = [[] for _ in predecessors]
    pending = [len(before) for before in predecessors]
    for k, before in enumerate(predecessors):
        for p in before:
            successors[p].append(k)
    # The round in which an entry is taken: that of its predecessors, or the next one where they are later in the list.
    round_of = [0] * len(predecessors)
    ready = [k for k, count in enumerate(pending) if not count]
    ordered: list[int] = []
    while ready:
        p = ready.pop()
        ordered.append(p)
        for k in successors[p]:
            round_of[k] = max(round_of[k], round_of[p] + (p > k))
            pending[k] -= 1
            if not pending[k]:
                ready.append(k)
    return sorted(ordered, key=lambda k: (round_of[k], k))
