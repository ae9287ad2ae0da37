"""OpenMP runtime of parallel loops: the library that is found, or single-threaded stubs.

A library that another part of the process uses comes first, so that there is one pool of threads.
"""

import ctypes
import glob
import logging
import os
import re
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tilewright.errors import OptionError

LIBRARY_VARIABLE = "TILEWRIGHT_OMP_LIBRARY"
REQUIRED_SYMBOLS = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")
"""Functions that generated code calls, including that of earlier versions in saved models; libgomp, LLVM's libomp and
Intel's libiomp5 export all of them."""

STUBS = """
define void @GOMP_parallel(ptr %body, ptr %data, i32 %threads, i32 %flags) {
  call void %body(ptr %data)
  ret void
}
define void @GOMP_barrier() {
  ret void
}
define i32 @omp_get_thread_num() {
  ret i32 0
}
define i32 @omp_get_num_threads() {
  ret i32 1
}
"""

SPIN_COUNT = 2500
"""Polls of libgomp's idle threads before they sleep: 40 to 120 us, as a poll takes 40 to 140 cycles."""

_SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""Variables by which users choose how long threads spin."""

_SYSTEM_NAMES = ("libgomp.so.1", "libomp.so.5", "libomp.so", "libiomp5.so")
_LIBRARY_PATTERN = re.compile(r"/lib(gomp|omp|iomp5)[-.0-9a-z]*\.so[.0-9]*$")
_log = logging.getLogger("tilewright.runtime")


@dataclass(frozen=True, slots=True)
class OpenMP:
    """An OpenMP runtime: where it was found, and the addresses of its functions (none for the stubs)."""

    path: str
    addresses: Mapping[str, int]

    @property
    def is_parallel(self) -> bool:
        """Whether it starts threads."""
        return bool(self.addresses)

    def start_threads(self, threads: int) -> None:
        """Starts the threads for the calling thread's regions of this size."""
        if self.is_parallel and threads > 1:
            start, nothing = (self.addresses[name] for name in ("GOMP_parallel", "omp_get_thread_num"))
            ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_uint] * 2)(start)(nothing, None, threads, 0)


@lru_cache(maxsize=1)
def find_openmp() -> OpenMP:
    """The OpenMP runtime of this process, looked up once.

    Order: the variable TILEWRIGHT_OMP_LIBRARY (a path, or "none" for the stubs), a library that is already loaded, the
    system's library, a library inside an installed Python package.

    Raises:
        OptionError: the variable names a file that cannot be used.
    """
    requested = os.environ.get(LIBRARY_VARIABLE, "").strip()
    if requested == "none":
        return OpenMP("none", {})
    if requested:
        library = open_library(requested)
        if library is None:
            names = ", ".join(REQUIRED_SYMBOLS)
            what = f"expected a shared library with {names}"
            raise OptionError(
                what, where=f"environment variable {LIBRARY_VARIABLE}={requested}", hint="unset it or give a path"
            )
        return library
    for path in [*loaded_libraries(), *_SYSTEM_NAMES, *_bundled_libraries()]:
        library = open_library(path)
        if library is not None:
            return library
    _log.warning("no OpenMP runtime found: models run on one thread; install libgomp1 or set %s", LIBRARY_VARIABLE)
    return OpenMP("none", {})


def open_library(path: str) -> OpenMP | None:
    """Opens a library and looks up its functions; None where it cannot be opened or lacks one.

    Idle threads of libgomp spin for milliseconds, and so do threads that wait for the end of a region, on cores that
    others need by then: threads of NumPy, or the thread that is waited for. A library that is not loaded yet is
    configured to spin less; the user's own choice takes precedence.
    """
    try:
        with nullcontext() if any(name in os.environ for name in _SPIN_VARIABLES) else _short_spin():
            library = ctypes.CDLL(path)
        addresses = {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in REQUIRED_SYMBOLS}
    except (OSError, AttributeError):
        return None
    return OpenMP(path, addresses)


@contextmanager
def _short_spin() -> Generator[None]:
    """A library that is loaded inside reads its spinning time from the environment."""
    os.environ[_SPIN_VARIABLES[0]] = str(SPIN_COUNT)
    try:
        yield
    finally:
        del os.environ[_SPIN_VARIABLES[0]]


def loaded_libraries(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Paths of the OpenMP libraries that this process has mapped, in the order of their addresses."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return []
    paths = [line[line.index("/") :] for line in lines if "/" in line]
    return list(dict.fromkeys(path for path in paths if _LIBRARY_PATTERN.search(path)))


def _bundled_libraries() -> Iterator[str]:
    """OpenMP libraries inside installed wheels (torch/lib, scikit_learn.libs, ...), found without an import."""
    for folder in sys.path:
        for pattern in ("*.libs/libgomp*.so*", "*.libs/libomp*.so*", "*/lib/libgomp*.so*", "*/lib/libomp*.so*"):
            yield from sorted(glob.glob(os.path.join(glob.escape(folder or "."), pattern)))
