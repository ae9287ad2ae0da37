"""Runtime of compiled models: artifact files, linking, feeds, workspaces, threads.

The only code that a deployed model needs; it imports no layer of the compiler. Names are imported on first use, so that
the detection of CPU features (`host_features.py`) loads neither NumPy nor the linker.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.runtime.artifact import Artifact, is_artifact, load_artifact, save_artifact
    from tilewright.runtime.executable import Executable, load

__all__ = ["Artifact", "Executable", "is_artifact", "load", "load_artifact", "save_artifact"]

_MODULES = {
    "Artifact": "artifact",
    "Executable": "executable",
    "is_artifact": "artifact",
    "load": "executable",
    "load_artifact": "artifact",
    "save_artifact": "artifact",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'tilewright.runtime' has no attribute {name!r}")
    value = getattr(import_module(f"tilewright.runtime.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
