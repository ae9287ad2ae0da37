"""Batched evaluation of programs that share a formula."""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np

from tilewright.cost.learned.part_features import FeatureRows

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


def evaluate_by_group(
    items: Sequence[Item], key: Callable[[Item], Key], evaluate: Callable[[Key, list[Item]], np.ndarray]
) -> list[float]:
    """Evaluates a number per item, group by group.

    Args:
        items: the items.
        key: the group of an item.
        evaluate: the numbers of a group's items, in their order.
    """
    values = [0.0] * len(items)
    for common, members in _positions_by_key(items, key).items():
        for k, number in zip(members, evaluate(common, [items[k] for k in members]), strict=True):
            values[k] = float(number)
    return values


def rows_by_group(
    items: Sequence[Item], key: Callable[[Item], Key], evaluate: Callable[[Key, list[Item]], FeatureRows]
) -> FeatureRows:
    """Features of items, group by group; arguments as of `evaluate_by_group`.

    Returns:
        The features in the order of the items; at least one item.
    """
    groups = _positions_by_key(items, key)
    batches = [evaluate(common, [items[k] for k in members]) for common, members in groups.items()]
    order = np.argsort([k for members in groups.values() for k in members], kind="stable")
    return FeatureRows.concat(batches).take(order.tolist())


def _positions_by_key(items: Sequence[Item], key: Callable[[Item], Key]) -> dict[Key, list[int]]:
    groups: dict[Key, list[int]] = {}
    for k, item in enumerate(items):
        groups.setdefault(key(item), []).append(k)
    return groups
