"""Runtime of compiled models: artifact files, linking, feeds, workspaces, threads.

The only code that a deployed model needs; it imports no layer of the compiler.
"""

from tilewright.runtime.artifact import Artifact, is_artifact, load_artifact, save_artifact
from tilewright.runtime.executable import Executable, load

__all__ = ["Artifact", "Executable", "is_artifact", "load", "load_artifact", "save_artifact"]
