"""Hook for the detection of this machine's CPU features.

LLVM detects them, the `machine` layer needs them, and only `codegen` and `runtime` import LLVM. So the package
registers a detector of the runtime when it is imported; LLVM is loaded at its first call.
"""

from collections.abc import Callable

Detector = Callable[[], frozenset[str]]
"""Returns LLVM's names of the features; raises RuntimeError where LLVM does not know the processor."""

_detectors: list[Detector] = []


def register_detector(detector: Detector) -> None:
    """Makes a detector the one that `detect_features` calls."""
    _detectors[:] = [detector]


def detect_features() -> frozenset[str]:
    """The features that the registered detector finds.

    Raises:
        RuntimeError: it finds none, or there is no detector.
    """
    if not _detectors:
        raise RuntimeError("no detector of CPU features is registered")
    return _detectors[0]()
