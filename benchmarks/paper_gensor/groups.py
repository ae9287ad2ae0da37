"""Programs that share a formula are asked about together."""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np

Key = TypeVar("Key", bound=Hashable)
Thing = TypeVar("Thing")


def by_group(
    every: Sequence[Thing], key: Callable[[Thing], Key], answer: Callable[[Key, list[Thing]], np.ndarray]
) -> list[float]:
    """A number for each of some things.

    Args:
        every: the things.
        key: what those have in common that are asked about together.
        answer: the numbers of the things of one group, in their order.
    """
    found = [0.0] * len(every)
    groups: dict[Key, list[int]] = {}
    for k, thing in enumerate(every):
        groups.setdefault(key(thing), []).append(k)
    for common, own in groups.items():
        for k, number in zip(own, answer(common, [every[k] for k in own]), strict=True):
            found[k] = float(number)
    return found
