"""Topological order that keeps a given order where it can."""

from collections.abc import Collection, Sequence


def stable_topological_order(predecessors: Sequence[Collection[int]]) -> list[int]:
    """The order that results when a list is gone through again and again, and each entry is taken as soon as all that
    it needs have been taken; in time proportional to the entries and needs.

    Args:
        needs: for each position the positions that come before it.

    Returns:
        Positions; those on circles, and those that need them, are missing.
    """
    users: list[list[int]] = [[] for _ in predecessors]
    missing = [len(wanted) for wanted in predecessors]
    for k, wanted in enumerate(predecessors):
        for p in wanted:
            users[p].append(k)
    # in which round an entry is taken: that of what it needs, or the next one where that stands behind it
    turn = [0] * len(predecessors)
    ready = [k for k, count in enumerate(missing) if not count]
    done: list[int] = []
    while ready:
        p = ready.pop()
        done.append(p)
        for k in users[p]:
            turn[k] = max(turn[k], turn[p] + (p > k))
            missing[k] -= 1
            if not missing[k]:
                ready.append(k)
    return sorted(done, key=lambda k: (turn[k], k))
