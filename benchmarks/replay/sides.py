"""The two sides of a replay: the sources of a revision, whose records are kept, and those of the working tree."""

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "replay"
"""Records of base revisions; git ignores the folder."""


class SideError(Exception):
    """A side that could not be run."""


def run_base(revision: str, only: str, jobs: int) -> Path:
    """The folder with the records of a revision; those that another run made with this runner are not made again."""
    tree = _git("rev-parse", "--verify", "--quiet", f"{revision}:src", wrong=f"there is no revision {revision!r}")
    folder = KEPT / f"{tree[:16]}-{_runner()}"
    with tempfile.TemporaryDirectory(prefix="replay-base-") as temporary:
        checkout = Path(temporary) / "base"
        _git("worktree", "add", "--quiet", "--detach", str(checkout), revision, wrong="no worktree could be made")
        try:
            _run(checkout / "src", folder, only, jobs, f"base {revision}", "0")
        finally:
            _git("worktree", "remove", "--force", str(checkout), wrong="the worktree could not be removed")
    return folder


def run_here(folder: Path, only: str, jobs: int) -> None:
    """Makes the records of the working tree in a folder."""
    _run(ROOT / "src", folder, only, jobs, "working tree", "1")


def _run(source: Path, folder: Path, only: str, jobs: int, label: str, seed: str) -> None:
    """Runs the cases; the sides' hash seeds differ, so that an order of a set that decides code does not go unseen."""
    command = [sys.executable, "-m", "benchmarks.replay.runner", "--source", str(source), "--out", str(folder),
               "--only", only, "--jobs", str(jobs), "--label", label]  # fmt: skip
    # the runner is the working tree's, for both sides
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(source), str(ROOT)]), "PYTHONHASHSEED": seed}
    if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
        raise SideError(f"{label}: the cases could not be run")


def _git(*words: str, wrong: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SideError(f"{wrong}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def _runner() -> str:
    """A hash of all that decides a record but the package: this folder's sources, and versions of what they use."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    for name in ("llvmlite", "numpy", "onnx", "ml_dtypes"):
        digest.update(f"{name} {version(name)}".encode())
    digest.update(platform.python_version().encode())
    return digest.hexdigest()[:16]
