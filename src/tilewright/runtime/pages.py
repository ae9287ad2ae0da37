"""Prefaulting: memory pages mapped before kernels touch them, and huge pages where the system has them.

New memory is mapped at its first access: the processor faults, and the system finds and clears a page, for every 4 KiB.
That takes longer than most kernels need for the same bytes, and threads wait for one another's faults. Mapped as a
whole (Linux 5.14 or later) it costs a fraction; elsewhere nothing happens here, and pages are mapped as ever.
"""

import ctypes
import mmap
import sys
from functools import lru_cache

from tilewright.machine.memory_advice import HUGE_PAGE_BYTES, HUGEPAGE, POPULATE_READ, POPULATE_WRITE


@lru_cache(maxsize=1)
def _madvise() -> "ctypes._NamedFuncPointer | None":  # pyright: ignore[reportPrivateUsage] - a type alone
    if not sys.platform.startswith("linux"):
        return None
    call = ctypes.CDLL(None).madvise
    call.restype, call.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return call


def madvise_address() -> int:
    """The address of Linux' `madvise`, for native code; 0 on other systems."""
    call = _madvise()
    return 0 if call is None else ctypes.cast(call, ctypes.c_void_p).value or 0


def populate(address: int, size: int) -> None:
    """Prefaults the pages of a memory range that will be written; their content is unchanged.

    Args:
        address: of the first byte; partial pages at both ends are prefaulted, too.
        size: in bytes.
    """
    start, length = _whole_pages(address, size)
    call = _madvise()
    if call is not None and length:
        if size >= HUGE_PAGE_BYTES:
            call(start, length, HUGEPAGE)
        call(start, length, POPULATE_WRITE)


def populate_read(address: int, size: int) -> None:
    """Prefaults the pages of a memory range that will be read, such as a mapped file."""
    start, length = _whole_pages(address, size)
    call = _madvise()
    if call is not None and length:
        call(start, length, POPULATE_READ)


def _whole_pages(address: int, size: int) -> tuple[int, int]:
    start = address - address % mmap.PAGESIZE
    end = address + size
    return start, (end + -end % mmap.PAGESIZE - start if size else 0)
