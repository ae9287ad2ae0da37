"""Shared parts of the verbs: results, compile options, progress on standard error."""

import argparse
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tilewright.cli.terminal_line import TerminalLine
from tilewright.driver.kernel_build.build_resources import BuildResources, build_resources
from tilewright.driver.options import CompileOptions
from tilewright.errors import ModelFileError, OptionError
from tilewright.runtime import Executable, load, load_artifact
from tilewright.runtime.artifact import is_artifact_file
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.manifest_meta import BuildSpec

if TYPE_CHECKING:
    from tilewright.graph.layouts.plan import Plan

T = TypeVar("T")

Verbs = Any
"""The result of argparse's `add_subparsers`, which has no public type."""

_MIN_ELAPSED = 1.0
"""Seconds of a stage from which on the rest is estimated."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a verb.

    Attributes:
        data: the result as JSON values, for `--json`.
        text: the result for people.
        status: the exit code.
        optional: whether `--quiet` drops the text.
    """

    data: Any
    text: str = ""
    status: int = 0
    optional: bool = True


def add_compile_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of every verb that compiles."""
    group = parser.add_argument_group("compilation (of models that are not compiled yet)")
    group.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME:RANGE",
        help="range or size of a dynamic dimension (batch:1..64, height:32..960, seq:128) or of all dimensions of an"
        " input (x:1x3x32..960x*); may be given several times",
    )
    group.add_argument(
        "--target", default=None, metavar="NAME", help="host (default), x86-64, x86-64-v2, -v3, -v4, aarch64"
    )
    group.add_argument(
        "--optimizer",
        default=None,
        metavar="NAME",
        help="how loops are chosen: gensor (default), vortex, roller or rule; for comparisons dietcode, vortex-static1"
        " or vortex-static2",
    )
    group.add_argument(
        "--machine",
        default=None,
        metavar="NAME|FILE",
        help="what gensor, vortex and roller construct programs for: a machine of the package (zen5, haswell, ...) or a"
        " JSON file as `doctor --machine --save` writes it; by default this machine's calibration or description",
    )
    group.add_argument(
        "--layouts",
        dest="plan",
        type=Path,
        default=None,
        metavar="FILE",
        help="plan of the tensors' layouts, a JSON file (docs/layouts.md): `layouts.plan` of `inspect --layout-plan"
        " --json` is one to start from",
    )
    group.add_argument(
        "--exact", action="store_true", help="compute convolutions as they are defined, never by minimal filtering"
    )
    group.add_argument(
        "--winograd",
        default=None,
        choices=("safe", "fast"),
        help="minimal filtering where roller or gensor estimate that it is faster: tiles that round about as much as"
        " the direct sum (safe, default), or larger ones with some times the error (fast)",
    )
    _add_kernel_options(group)


def _add_kernel_options(group: Any) -> None:
    """Adds the options of what becomes one kernel, and of how many programs it has."""
    group.add_argument(
        "--fuse",
        default=None,
        choices=("mcfuser", "chimera", "unfused"),
        help="how chains of contractions (products, attention, convolutions) become single kernels where roller or"
        " gensor estimate that it is faster: by MCFuser's space of loops (default), by Chimera's, or not at all",
    )
    group.add_argument(
        "--max-variants",
        type=int,
        default=None,
        metavar="N",
        help="programs of a kernel whose sizes are dynamic, at most (default: 8): the sizes of a call decide which"
        " one runs",
    )


def add_build_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of every verb that generates code."""
    group = parser.add_argument_group("how to compile, without an effect on the code")
    group.add_argument(
        "--jobs",
        type=int,
        default=None,
        metavar="N",
        help="processes that compile; by default TILEWRIGHT_JOBS, or one per core that this process may use",
    )
    group.add_argument(
        "--no-cache",
        action="store_true",
        help="neither use nor keep machine code in the cache folder (`tilewright cache`)",
    )
    add_record_options(parser)


def add_record_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of which records of programs are used."""
    group = parser.add_argument_group("records of programs (`tilewright records`)")
    group.add_argument(
        "--records",
        metavar="PATH",
        help="a store or an export; by default TILEWRIGHT_RECORDS, or the user's store. Programs that were measured are"
        " used, and those that are constructed are kept",
    )
    group.add_argument("--no-records", action="store_true", help="neither use nor keep records")
    group.add_argument(
        "--frozen", action="store_true", help="use records alone, construct nothing; an error names kernels without one"
    )


def build_options(options: argparse.Namespace) -> BuildResources:
    """The values of the flags of `add_build_options`."""
    if options.records is not None and options.no_records:
        raise OptionError("it excludes --records", where="--no-records", hint="leave out one of the two")
    records = False if options.no_records else options.records
    return build_resources(options.jobs, False if options.no_cache else None, records=records, frozen=options.frozen)


def add_output_options(parser: argparse.ArgumentParser, default: Any = False) -> None:
    """Adds the options that every verb has.

    Args:
        parser: receives them.
        default: the value of those that are not given; `argparse.SUPPRESS` leaves them to an outer parser.
    """
    parser.add_argument(
        "--json", action="store_true", default=default, help="print the result as JSON on standard output"
    )
    parser.add_argument(
        "-q", "--quiet", action="store_true", default=default, help="no progress, warnings or report"
    )


def add_threads_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option for the number of threads."""
    parser.add_argument(
        "--threads",
        type=int,
        default=None,
        metavar="N",
        help="threads per call; by default TILEWRIGHT_NUM_THREADS, OMP_NUM_THREADS, or what the system grants",
    )


COMPILE_FLAGS = {
    **{name: f"--{name}" for name in ("shape", "target", "optimizer", "machine", "exact", "winograd", "fuse")},
    "max_variants": "--max-variants",
    "plan": "--layouts",
}
"""Flags that have no effect on a model that is compiled already, by the names of their values."""


def reject_flags(options: argparse.Namespace, flags: Mapping[str, str], when: str, where: str, hint: str) -> None:
    """Raises OptionError if some of these flags, by the names of their values, are given: they have no effect."""
    given = [flag for name, flag in flags.items() if getattr(options, name)]
    if given:
        has = "has" if len(given) == 1 else "have"
        raise OptionError(f"{', '.join(given)} {has} no effect {when}", where=where, hint=hint)


def compile_options(options: argparse.Namespace) -> CompileOptions:
    """The values of the flags of `add_compile_options`."""
    return CompileOptions(
        shapes=shapes_of(options),
        target=options.target,
        optimizer=options.optimizer,
        machine=options.machine,
        layouts=None if options.plan is None else _read_plan(options.plan),
        exact=options.exact,
        winograd=options.winograd,
        fusion=options.fuse,
        variants=options.max_variants,
    )


def _read_plan(path: Path) -> "Plan":
    from tilewright.graph.layouts.plan_json import read_plan  # here because only compiling verbs need it

    return read_plan(path)


def shapes_of(options: argparse.Namespace) -> Mapping[str, Any] | None:
    """The value of `--shape`."""
    from tilewright.frontend.onnx import parse_shape_options  # here because only compiling verbs need it

    return parse_shape_options(options.shape) or None


class Progress:
    """Progress of a compilation in a `TerminalLine`.

    A stage "kernels: conv1 (Conv)" is the stage "kernels" and what it works on.
    """

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._line = quiet, TerminalLine()
        self._start = self._stage_start = time.monotonic()
        self._stage = ""
        self._total = self._done_before = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Reports that `done` of `total` parts of a stage are done."""
        if self._quiet:
            return
        now = time.monotonic()
        stage = what.partition(": ")[0]
        is_new = stage != self._stage
        if is_new or total != self._total:  # more parts may become known while a stage lasts
            self._stage, self._total, self._stage_start, self._done_before = stage, total, now, done
        text = f"{stage} {done}/{total}{self._remaining(now, done, total)}{what[len(stage) :]}"
        self._line.show(text, is_new, f"{now - self._start:.0f} s: {text}")

    def _remaining(self, now: float, done: int, total: int) -> str:
        """How long the known parts of a stage will still take, if they take as long as those before; empty at first."""
        finished, elapsed = done - self._done_before, now - self._stage_start
        if finished < 2 or elapsed < _MIN_ELAPSED:
            return ""
        return f", about {elapsed / finished * (total - done):.0f} s left"

    def end(self) -> None:
        """Clears the line."""
        self._line.clear()


def with_progress(options: argparse.Namespace, work: Callable[[Progress], T]) -> T:
    """Runs `work` with a progress reporter, and clears its line afterwards."""
    progress = Progress(options.quiet)
    try:
        return work(progress)
    finally:
        progress.end()


def with_stage(options: argparse.Namespace, what: str, work: Callable[[], T]) -> T:
    """Runs `work` while a terminal shows what it is."""

    def shown(progress: Progress) -> T:
        progress(what, 0, 1)
        return work()

    return with_progress(options, shown)


def is_compiled(path: str) -> bool:
    """Whether a file is an artifact.

    Raises:
        ModelFileError: it can't be read.
    """
    try:
        return is_artifact_file(Path(path))
    except OSError as error:
        raise ModelFileError(f"can't be read: {error.strerror}", where=f"file '{path}'") from error


def reject_compiled(path: str, what: str) -> None:
    """Raises if a file is an artifact: the damage of a damaged one, else `what`.

    Raises:
        ArtifactError: it is an artifact, and damaged.
        OptionError: it is an artifact.
        ModelFileError: it can't be read.
    """
    if is_compiled(path):
        load_artifact(path)
        raise OptionError(what, where=f"file '{path}'", hint="give the ONNX model")


def executable_of(options: argparse.Namespace, check_signature: Callable[[Manifest], object]) -> Executable:
    """The executable of the verb's file, which is compiled if it is a model; `check_signature` as for
    `make_compilation`."""
    if is_compiled(options.file):
        when, hint = "on a model that is compiled already", "leave it out or give the ONNX model"
        reject_flags(options, COMPILE_FLAGS, when, f"file '{options.file}'", hint)
        return load(options.file, options.threads)
    from tilewright.driver.compile_model import compile_with_options  # here because it may import the compiler

    return with_progress(
        options,
        lambda report_progress: compile_with_options(
            options.file, compile_options(options), options.threads, report_progress, build_options(options),
            check_signature,
        ),
    )


def build_text(build: BuildSpec) -> str:
    """The build choices in a line.

    For example "optimizer gensor (seed 0), machine zen5 (shipped, sha256 0123456789abcdef), convolutions safe, fusion
    mcfuser, at most 8 variants".
    """
    seed = "" if build.seed is None else f" (seed {build.seed})"
    m = build.machine
    machine = "" if m is None else f", machine {m.name} ({m.origin}, sha256 {m.sha256[:16]})"
    convolutions = "" if build.convolutions == "direct" else f", convolutions {build.convolutions}"
    fusion = "" if build.fusion == "unfused" else f", fusion {build.fusion}"
    variants = "" if build.variants == 1 else f", at most {build.variants} variants"
    return f"optimizer {build.optimizer}{seed}{machine}{convolutions}{fusion}{variants}"


def table(header: tuple[str, ...], rows: list[tuple[str, ...]], left: Collection[int] = (0,)) -> str:
    """A table as text, the columns `left` aligned left and the others right."""
    widths = [max(len(r[k]) for r in (header, *rows)) for k in range(len(header))]

    def line(row: tuple[str, ...]) -> str:
        cells = [c.ljust(w) if k in left else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))]
        return "  ".join(cells).rstrip()

    return "\n".join(line(r) for r in (header, *rows))


def size_text(count: int) -> str:
    """Bytes for people."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"
