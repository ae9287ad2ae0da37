"""A lock around everything that LLVM does in a process that only runs models, so that no fork happens meanwhile."""

import os
import threading
from contextlib import AbstractContextManager


class _LinkLock:
    """The lock that linking takes. A fork waits for it: a child in which nobody is left to release the lock, or those
    that LLVM and imports hold meanwhile, would wait for ever."""

    lock = threading.RLock()
    held = False


def _before_fork() -> None:
    # not without end: the linking thread may itself wait for something that this one holds, such as a module's import
    _LinkLock.held = _LinkLock.lock.acquire(timeout=30)


def _after_fork_in_parent() -> None:
    if _LinkLock.held:
        _LinkLock.lock.release()


def _after_fork_in_child() -> None:
    _LinkLock.lock = threading.RLock()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def hold_link_lock() -> AbstractContextManager[object]:
    """The lock that holds while code is linked; a thread that has it may take it again."""
    return _LinkLock.lock
