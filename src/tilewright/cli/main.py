"""Parsing of the command line, error reports and exit codes.

0: done. 1: a mistake in the model, a file or an argument. 2: wrong usage of the command line. 3: `verify` found
outputs that differ. 70: a fault of tilewright. 130: interrupted.
"""

import argparse
import contextlib
import dataclasses
import difflib
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Generator, Sequence
from typing import Any, NoReturn

from tilewright.cli import bench, cache, compile, doctor, inspect, profile, records, run, tune, verify
from tilewright.cli.common import Result, add_output_options
from tilewright.cli.exit_codes import INTERNAL_ERROR, INTERRUPTED, USAGE_ERROR, USER_ERROR
from tilewright.cli.terminal_line import CLEAR_LINE
from tilewright.errors import InternalError, MachineWarning, ModelError, TilewrightError, TilewrightWarning
from tilewright.version import __version__

_EPILOG = """`tilewright VERB --help` lists the options of a verb.

exit codes:
  0   done
  1   a mistake in the model, a file or an argument; the message names it
  2   wrong usage of the command line
  3   verify: outputs differ more than they may
  70  a fault of tilewright; please report it
  130 interrupted by Ctrl-C

examples:
  tilewright compile model.onnx -o model.tw --shape batch:1..64
  tilewright tune model.onnx --budget 5m
  tilewright run model.tw --inputs x.npz --outputs y.npz
  tilewright verify model.onnx --size batch=4
"""

_VERBS = (compile, tune, run, bench, profile, verify, inspect, records, cache, doctor)


class _UsageError(Exception):
    """An error of argparse, with the parser that raised it."""

    def __init__(self, source: argparse.ArgumentParser, message: str) -> None:
        self.source, self.message = source, message
        super().__init__(message)


class _Parser(argparse.ArgumentParser):
    """A parser that leaves the report of wrong usage to `main`. It takes no abbreviations: a script that uses one would
    mean another option once there is one of that name."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        raise _UsageError(self, message)


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    top = _Parser(
        prog="tilewright",
        description="A compiler for deep-learning inference: an ONNX model goes in, native code comes out.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"tilewright {__version__}")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", title="verbs")
    for module in _VERBS:
        verb = module.add(verbs)
        add_output_options(verb)
        verb.set_defaults(action=module.execute, parser=verb)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: the command line without the program's name; the process's own by default.

    Returns:
        The exit code.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # names that the terminal has no letters for, or that are no text, are printed as escapes
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        options = _parse(arguments)
    except _UsageError as error:
        return _report_usage(error, "--json" in (sys.argv[1:] if arguments is None else arguments))
    try:
        with _warnings_as_lines(options.quiet):
            result: Result = options.action(options)
        _print(options, result)
        return result.status
    except InternalError as error:
        _report_error(options, error)
        return INTERNAL_ERROR
    except TilewrightError as error:
        _report_error(options, error)
        return USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe (`| head`): discard all further output, that at exit included.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("TILEWRIGHT_TRACEBACK"):
            raise
        what = f"{type(error).__name__}: {error}"
        _report_error(options, InternalError(what, where=options.verb, hint=_TRACEBACK_HINT))
        return INTERNAL_ERROR


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command line.

    Raises:
        _UsageError: an argument is unknown or has another form; it names the verb, and the option that may be meant.
    """
    options, unknown = parser().parse_known_args(_join_negative(sys.argv[1:] if arguments is None else arguments))
    if unknown:
        own: argparse.ArgumentParser = options.parser
        names = re.findall(r"(?m)^ +(?:-\w[^-]*, )?--([a-z][a-z-]*)", own.format_help())
        given = [u.partition("=")[0].removeprefix("--") for u in unknown]
        close = [f"--{name}" for g in given for name in difflib.get_close_matches(g, names, 1)]
        meant = f"; did you mean {' or '.join(dict.fromkeys(close))}?" if close else ""
        raise _UsageError(own, f"unrecognized arguments: {' '.join(unknown)}{meant}")
    return options


def _join_negative(arguments: Sequence[str]) -> list[str]:
    """The arguments, with values such as -5..-1, which argparse takes for flags, joined to theirs: --ints=-5..-1."""
    joined: list[str] = []
    for text in arguments:
        if joined and re.match(r"-\d", text) and re.fullmatch(r"--[a-z][a-z-]*", joined[-1]):
            joined[-1] += f"={text}"
        else:
            joined.append(text)
    return joined


def _report_usage(error: _UsageError, as_json: bool) -> int:
    usage = error.source.format_usage().strip()
    if as_json:
        text = f"[usage] {error.message}"
        print(json.dumps({"error": {"code": "usage", "where": error.source.prog, "what": error.message,
                                    "hint": usage, "text": text}}, indent=2))  # fmt: skip
    else:
        print(f"{usage}\n{error.source.prog}: error: {error.message}", file=sys.stderr)
    return USAGE_ERROR


_TRACEBACK_HINT = "this is a fault of tilewright: run again with TILEWRIGHT_TRACEBACK=1 and report what it prints"


def _print(options: argparse.Namespace, result: Result) -> None:
    if options.json:
        print(json.dumps(result.data, indent=2))
    elif result.text and not (options.quiet and result.optional):
        print(result.text)
    sys.stdout.flush()


_FLAGS = {
    **{name: f"--{name}" for name in ("address", "budget", "frozen", "machine", "optimizer", "plan")},
    **{name: f"--{name}" for name in ("sizes", "target", "trials", "winograd", "workers")},
    **{f"argument '{name}'": f"--{name}" for name in ("jobs", "threads")},
    "argument 'shapes'": "--shape",
    "fusion": "--fuse",
    "target speedup": "--target-speedup",
    "variants": "--max-variants",
}
"""Flags, by where the errors of what they set say that they are."""


def _report_error(options: argparse.Namespace, error: TilewrightError) -> None:
    place, *detail = error.where.split(", ", 1)
    error.where = ", ".join([_FLAGS.get(place, place), *detail])
    if options.json:
        data: dict[str, Any] = {
            "code": error.code, "where": error.where, "what": error.what, "hint": error.hint, "text": str(error)
        }  # fmt: skip
        if isinstance(error, ModelError):
            data["problems"] = [dataclasses.asdict(p) for p in error.problems]
        print(json.dumps({"error": data}, indent=2))
    else:
        print(f"tilewright {options.verb}: {error}", file=sys.stderr)


@contextlib.contextmanager
def _warnings_as_lines(quiet: bool) -> Generator[None]:
    """Warnings for users as lines on standard error, each text once; machines may be lost twice."""
    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *rest: Any, **named: Any) -> None:
        text = str(message)
        if text not in shown or issubclass(category, MachineWarning):
            shown.add(text)
            over_progress = CLEAR_LINE if sys.stderr.isatty() else ""
            print(f"{over_progress}warning: {text}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if quiet else "always", TilewrightWarning)
        warnings.showwarning = show
        yield
