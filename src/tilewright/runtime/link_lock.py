"""Link lock: held during all LLVM work of a process that only runs models, so that no fork happens meanwhile."""

import os
import threading
from contextlib import AbstractContextManager


class _LinkLock:
    """The lock and whether the forking thread holds it.

    A fork waits for it: otherwise a child could inherit it, or the locks that LLVM and imports hold during linking,
    without the thread that would release them.
    """

    lock = threading.RLock()
    held = False


def _before_fork() -> None:
    # with a timeout: the linking thread may wait for something that this one holds, such as an import lock
    _LinkLock.held = _LinkLock.lock.acquire(timeout=30)


def _after_fork_in_parent() -> None:
    if _LinkLock.held:
        _LinkLock.lock.release()


def _after_fork_in_child() -> None:
    _LinkLock.lock = threading.RLock()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def hold_link_lock() -> AbstractContextManager[object]:
    """The lock that is held while code is linked; it is reentrant."""
    return _LinkLock.lock
