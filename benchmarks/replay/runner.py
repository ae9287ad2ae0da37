"""Compiles the cases with the package that comes first on the path, and writes a record for each.

    python -m benchmarks.replay.runner --source FOLDER --out FOLDER --jobs 2 --only PATTERN

Nothing of the package is used but its command line and the file format of artifacts, so that any two revisions can be
compared by one runner. No compiled code runs. Each case has a process of its own, forked from one that has imported the
compiler.
"""

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import onnx

from benchmarks.replay import artifact, record
from benchmarks.replay.cases import Case, cases
from benchmarks.replay.normalise import neutral_manifest, weight_names
from benchmarks.replay.objects import neutral_code
from benchmarks.replay.record import Kernel, Record

FAULT = "internal"
"""The class of errors that are the compiler's own."""


def path_of(folder: Path, name: str) -> Path:
    """Where the record of a case is kept."""
    return folder / f"{name.replace('/', '__')}.gz"


def levels(case: Case, folder: Path) -> Record:
    """What `inspect` shows of a case: kernels with their traces, and LLVM IR."""
    model = folder / "model.onnx"
    onnx.save(case.model.make(), model)
    printed, failed = _command("inspect", str(model), "--schedule", "--llvm", "--json", "--quiet", *case.options)
    if failed:
        return _refused(printed)
    shown = json.loads(printed)
    kernels = tuple(Kernel(k["name"], k["optimizer"], k["steps"]) for k in shown["schedule"])
    return Record(kernels=kernels, llvm=shown["llvm"])


def compiled(case: Case, folder: Path) -> Record:
    """What a case gives: what `inspect` shows, and the file that `compile` writes."""
    start = time.perf_counter()
    found = levels(case, folder)
    if found.error:
        return found
    model, file = folder / "model.onnx", folder / "model.tw"
    printed, failed = _command("compile", str(model), "-o", str(file), "--json", "--quiet", *case.options)
    if failed:
        return _refused(printed)
    parts = artifact.read(file)
    return replace(
        found,
        manifest=tuple(json.dumps(neutral_manifest(parts.manifest), indent=1, sort_keys=True).splitlines()),
        weights=tuple(f"{new}: {parts.weights[old]}" for old, new in weight_names(parts.manifest).items()),
        object=tuple(neutral_code(parts.code)),
        seconds=round(time.perf_counter() - start, 3),
    )


def _command(*words: str) -> tuple[str, int]:
    """What the command line prints, and its exit status."""
    out, argv = io.StringIO(), sys.argv
    sys.argv = ["tilewright", *words]
    try:
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runpy.run_module("tilewright", run_name="__main__")
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        sys.argv = argv
    return out.getvalue(), status


def _refused(printed: str) -> Record:
    """The record of an error that the command line reports as JSON."""
    try:
        error = json.loads(printed)["error"]
        return Record(error=error["code"], message=error["text"])
    except (ValueError, KeyError):
        return Record(error=FAULT, message=printed[-1000:] or "nothing is printed")


def _run(case: Case, out: Path) -> None:
    """Runs a case and keeps its record."""
    with tempfile.TemporaryDirectory() as folder:
        found = compiled(case, Path(folder))
    record.write(found, path_of(out, case.name))


def _run_all(chosen: Sequence[Case], out: Path, jobs: int, label: str) -> None:
    """Runs cases in processes of their own; one that dies is a fault of its case."""
    context = multiprocessing.get_context("fork")
    running: dict[int, tuple[BaseProcess, Case]] = {}
    for k, case in enumerate(chosen):
        process = context.Process(target=_run, args=(case, out))
        process.start()
        running[process.sentinel] = process, case
        while len(running) >= jobs:
            _collect(running, out)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{label} {k + 1}/{len(chosen)} {case.name}\r")
    while running:
        _collect(running, out)


def _collect(running: dict[int, tuple[BaseProcess, Case]], out: Path) -> None:
    """Waits until one of the processes ends."""
    for sentinel in wait(list(running)):
        assert isinstance(sentinel, int)
        process, case = running.pop(sentinel)
        process.join()
        if process.exitcode:
            message = f"its process ended with code {process.exitcode}"
            record.write(Record(error=FAULT, message=message), path_of(out, case.name))


def _fixed_environment() -> None:
    """Takes what the user's environment could tell the compiler away."""
    for name in [n for n in os.environ if n.startswith(("TILEWRIGHT_", "OMP_", "GOMP_"))]:
        del os.environ[name]
    # no calibration of this machine
    os.environ["TILEWRIGHT_CACHE_DIR"] = os.path.join(tempfile.gettempdir(), "tilewright-replay-no-calibration")
    # every case has a process, and compiles everything
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "TILEWRIGHT_JOBS": "1", "TILEWRIGHT_CACHE": "off"}
    os.environ["TILEWRIGHT_RECORDS"] = "off"


def _check_source(source: Path) -> None:
    import tilewright  # here because the environment is fixed before

    found = Path(tilewright.__file__).resolve().parent
    if found != (source / "tilewright").resolve():
        raise SystemExit(f"expected the package of {source}, found {found}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the chosen cases that have no record yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True, help="the folder that the package is expected in")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="*", metavar="PATTERN")
    parser.add_argument("--label", default="")
    options = parser.parse_args(arguments)
    _fixed_environment()
    _check_source(options.source)
    chosen = [c for c in cases(options.only) if record.read_digests(path_of(options.out, c.name)) is None]
    if not chosen:
        return 0
    # imports the compiler before the processes part
    with tempfile.TemporaryDirectory() as folder:
        compiled(cases()[0], Path(folder))
    start = time.perf_counter()
    _run_all(chosen, options.out, options.jobs, options.label)
    print(f"{options.label}: {len(chosen)} cases in {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
