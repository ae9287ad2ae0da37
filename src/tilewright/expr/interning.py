"""Hash-consing: a metaclass whose classes have at most one instance per value."""

import os
import weakref
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")

_intern_table: "weakref.WeakValueDictionary[tuple[Any, ...], Any]" = weakref.WeakValueDictionary()
_insertion_lock = Lock()
"""Held while a node is inserted: `WeakValueDictionary.setdefault` looks and adds in two steps."""


def _renew_lock() -> None:
    global _insertion_lock
    _insertion_lock = Lock()


# in a forked child no other thread is left that could release it
os.register_at_fork(after_in_child=_renew_lock)


class Interned(type):
    """Returns the existing instance with the same arguments if there is one."""

    def intern_key(cls, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The identity of an instance with these arguments."""
        return (cls, *args)

    def __call__(cls: type[T], *args: Any) -> T:
        """The instance with these arguments."""
        # Omitted fields are None, so that Symbol("n", 1) and Symbol("n", 1, None) are one node.
        num_missing = len(cls.__match_args__) - len(args)  # pyright: ignore[reportAttributeAccessIssue]
        if num_missing:
            args += (None,) * num_missing
        key = cls.intern_key(args)  # pyright: ignore[reportAttributeAccessIssue]
        node = _intern_table.get(key)
        if node is None:
            node = type.__call__(cls, *args)
            with _insertion_lock:
                node = _intern_table.setdefault(key, node)
        return node


class InternedLiteral(Interned):
    """For literals (value, dtype): 1, 1.0 and True differ, 0.0 and -0.0 differ, all NaN are one."""

    def intern_key(cls, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The identity of a literal."""
        value, dtype = args
        return cls, type(value), value.hex() if isinstance(value, float) else value, dtype
