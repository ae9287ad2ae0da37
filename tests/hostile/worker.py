"""Runs cases in a process of their own, with limits: `python -m tests.hostile.worker FOLDER CASE...`.

Prints one JSON object per case: what came of it, how long it took, and which files it opened. Files that Python and the
packages open for themselves do not count; whatever else is opened outside of the case's model folder does.
"""

import json
import os
import resource
import signal
import sys
import sysconfig
import time
import traceback
import warnings
from pathlib import Path
from types import FrameType

MEMORY = 8 << 30
SECONDS = 60

_OWN = (
    *(os.path.realpath(p) for p in {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix}),
    os.path.realpath(Path(__file__).parents[2]),
    "/proc/", "/sys/", "/usr/lib", "/lib", "/etc/ld.so", "/usr/share/zoneinfo", "/dev/null", "/dev/urandom",
)  # fmt: skip


class TooSlow(BaseException):
    """A case ran into its time limit; no handler of errors may catch it."""


class Watch:
    """The files that are opened while a case runs, as Python's audit events tell them."""

    def __init__(self) -> None:
        self.folder = ""
        self.opened: list[str] = []
        self._folders: dict[int, str] = {}
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[object, ...]) -> None:
        if event != "open" or not self.folder:
            return
        path, _, flags = arguments
        assert isinstance(flags, int)
        # cases write files; a name without a folder is relative to a descriptor of the model's folder, part by part
        if not isinstance(path, str | bytes | os.PathLike) or flags & (os.O_WRONLY | os.O_RDWR):
            return
        text = os.fsdecode(path)
        if os.sep not in text and flags & os.O_NOFOLLOW:
            return
        real = os.path.realpath(text)
        if not real.startswith((*_OWN, self.folder)):
            self.opened.append(real)


def _stop(number: int, frame: FrameType | None) -> None:
    raise TooSlow


def outcome(name: str, place: Path, watch: Watch, seconds: float) -> dict[str, object]:
    """Runs one case."""
    from tests.hostile.cases import CASES
    from tests.hostile.checks import CHECKS

    from tilewright.errors import InternalError, TilewrightError

    for folder in ("model", "elsewhere"):
        (place / folder).mkdir(parents=True)
    os.chdir(place / "elsewhere")
    begin, text = time.perf_counter(), ""
    watch.opened = []
    signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    watch.folder = os.path.realpath(place / "model")
    try:
        (CASES | CHECKS)[name].run(place)
        kind = "works"
    except TooSlow:
        kind, text = "TooSlow", traceback.format_exc()
    except TilewrightError as error:
        kind, text = type(error).__name__, str(error)
        if isinstance(error, InternalError):
            text = traceback.format_exc()
    except BaseException as error:
        kind, text = type(error).__name__, traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        watch.folder = ""
        os.chdir(place)
    return {"case": name, "outcome": kind, "text": text, "seconds": time.perf_counter() - begin,
            "opened": sorted(set(watch.opened))}  # fmt: skip


def main(folder: str, seconds: str, *names: str) -> None:
    """Runs cases one after the other."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    watch = Watch()
    for name in names:
        print(json.dumps(outcome(name, Path(folder) / name, watch, float(seconds))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
