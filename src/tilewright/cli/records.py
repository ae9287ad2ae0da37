"""`tilewright records`: shows, shares, merges, prunes and checks records of programs of kernels.

Where they are: --records PATH, TILEWRIGHT_RECORDS, or the user's store (docs/records.md).
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.cli.common import (
    COMPILE_FLAGS,
    Result,
    Verbs,
    add_compile_options,
    add_output_options,
    build_options,
    compile_options,
    reject_flags,
    size_text,
    table,
    with_progress,
)
from tilewright.cli.exit_codes import VERIFICATION_FAILED
from tilewright.cli.output_files import check_writable
from tilewright.driver.kernel_build.record_source import RecordSource, record_source
from tilewright.errors import DamagedStoreError, OptionError, StoreError, pluralize
from tilewright.gc_policy import raised_gc_threshold

if TYPE_CHECKING:
    from tilewright.measure.records.columns import TaskRow
    from tilewright.measure.records.record import Record
    from tilewright.measure.records.store import RecordStore

MAX_SHOWN = 20
"""Records of a kernel that `show` and `best` print, and reasons for what is skipped."""


def add(verbs: Verbs) -> argparse.ArgumentParser:
    """Adds the verb to a parser."""
    parser = verbs.add_parser(
        "records",
        help="show, share, merge, prune and check records of programs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_store_option(parser, None)
    # what is exported comes from records, not from machine code
    parser.set_defaults(no_records=False, no_cache=True, frozen=False)
    actions = parser.add_subparsers(dest="what", required=True, metavar="ACTION", title="actions")
    _add_action(actions, "list", "kernels with their number of records and measured times")
    for name, text in (
        ("show", "a kernel's loops, and its records with their steps"),
        ("best", "the records that a compilation on this machine looks at, best first"),
    ):
        action = _add_action(actions, name, text)
        action.add_argument("kernel", metavar="HASH", help="the first digits of a kernel's hash, as `list` shows it")
        if name == "best":
            action.add_argument("--machine", metavar="NAME|FILE", help="the machine instead of this one")
    _add_export(actions)
    for name, text in (
        ("import", "adds the records of exports"),
        ("merge", "adds the records of other stores"),
    ):
        _add_action(actions, name, text).add_argument("files", nargs="+", metavar="FILE", help="exports or stores")
    _add_action(actions, "prune", "removes what no compilation uses").add_argument(
        "--keep", type=int, metavar="N", help="timed programs that stay per kernel and machine (default: 16)"
    )
    _add_action(actions, "verify", "replays and verifies every program; exit code 3 on problems")
    return parser


def _add_action(actions: Any, name: str, text: str) -> argparse.ArgumentParser:
    """A parser of an action. Options that all have may stand before the action as well: there they have defaults."""
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    _add_store_option(parser, argparse.SUPPRESS)
    add_output_options(parser, argparse.SUPPRESS)
    parser.set_defaults(parser=parser)
    return parser


def _add_store_option(parser: argparse.ArgumentParser, default: Any) -> None:
    parser.add_argument(
        "--records",
        metavar="PATH",
        default=default,
        help="a store or an export; by default TILEWRIGHT_RECORDS, or the user's store",
    )


def _add_export(actions: Any) -> None:
    text = "JSON lines of all records, of one kernel, or of those that a model uses, which `compile --frozen` needs"
    parser = _add_action(actions, "export", text)
    parser.add_argument("-o", "--output", metavar="FILE", help="the file to write (default: standard output)")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--kernel", metavar="HASH", help="records of one kernel, by the first digits of its hash")
    chosen.add_argument("--model", metavar="MODEL", help="the records that a compilation of a model uses")
    parser.add_argument("--jobs", type=int, metavar="N", help="with --model: processes that compile")
    add_compile_options(parser)


def execute(options: argparse.Namespace) -> Result:
    """Shows or changes records."""
    what = options.what
    if what == "prune" and options.keep is not None and options.keep < 0:
        raise OptionError(f"expected a number of at least 0, got {options.keep}", where="--keep")
    if what == "export" and options.model is None:
        flags = {**COMPILE_FLAGS, "jobs": "--jobs"}
        reject_flags(options, flags, "without --model", "export", "leave it out, or name the model")
    source = record_source(options.records)
    if source is None:
        raise OptionError("TILEWRIGHT_RECORDS turns them off", where="records", hint="name a store with --records")
    if what == "prune" and not source.is_default and not os.path.exists(source.path):
        raise StoreError("there is no such store", where=f"records '{source.path}'", hint="check the path")
    if what == "export" and options.output is not None:
        check_writable(options.output, "--output", source.path, options.model)
    with raised_gc_threshold():
        if what == "export" and options.model is not None:
            return _export_model(options, source)
        actions = {
            "list": _list, "show": _show, "best": _show_best, "export": _export_store, "import": _import,
            "merge": _import, "prune": _prune, "verify": _verify,
        }  # fmt: skip
        try:
            with _open(source, what in ("import", "merge", "prune"), options.quiet) as store:
                return actions[what](options, store)
        except DamagedStoreError as error:
            if what not in ("export", "verify"):
                raise
            return _with_what_is_left(options, source, error)


def _with_what_is_left(options: argparse.Namespace, source: RecordSource, damage: DamagedStoreError) -> Result:
    """An export, or a verification, of what can still be read of a damaged store."""
    from tilewright.measure.records.salvage import salvage

    skip = _Skipped(options.quiet)
    with salvage(source.path, skip) as store:
        left = f"{pluralize(store.count(), 'record')} can still be read, {skip.count} can't"
        what = f"{damage.where}: {damage.what}; {left}"
        if options.what == "verify":
            return _verify(options, store, (what,))
        if not options.quiet:
            print(f"warning: {what}", file=sys.stderr)
        return replace(_export_store(options, store), status=VERIFICATION_FAILED)


class _Skipped:
    """Prints reasons for what is skipped on standard error, the first ones each."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self.count = quiet, 0

    def __call__(self, reason: str) -> None:
        self.count += 1
        if not self._quiet and self.count <= MAX_SHOWN:
            print(f"warning: {' '.join(reason.split())}", file=sys.stderr)
        if not self._quiet and self.count == MAX_SHOWN + 1:
            print("warning: more are skipped", file=sys.stderr)


def _open(source: RecordSource, writable: bool, quiet: bool) -> "RecordStore":
    from tilewright.measure.records.jsonl import open_records, open_writable
    from tilewright.measure.records.store import open_store

    skip = _Skipped(quiet)
    if not writable and source.is_default and not os.path.exists(source.path):
        return open_store(None, "read", skip)
    return open_writable(source.path, skip) if writable else open_records(source.path, skip)


def _list(options: argparse.Namespace, store: "RecordStore") -> Result:
    from tilewright.measure.records.columns import IS_LISTED
    from tilewright.measure.records.record import RecordKind
    from tilewright.measure.records.record_json import time_of_rank

    timed = f"r.kind <= {int(RecordKind.TIMING)}"
    rows = store.query(
        f"SELECT t.hash, t.target, count(*), sum(r.kind = {int(RecordKind.CHOICE)}), sum({timed}),"
        f" min(CASE WHEN r.kind = {int(RecordKind.TIMING)} THEN r.rank END), max(r.created)"
        f" FROM records r JOIN tasks t ON t.id = r.task WHERE {IS_LISTED} GROUP BY r.task"
        " ORDER BY max(r.created) DESC, t.hash"
    )
    texts = {(t.hash, t.target): t for t in store.tasks()}
    tuned = _tuned_kernels(store)
    data: list[dict[str, Any]] = [
        {"kernel": h, "target": target, "records": count, "choices": choices, "timed": n,
         "best_ns": None if best is None or is_dynamic else time_of_rank(best),
         "tuned": (h, target) in tuned, "what": what}
        for h, target, count, choices, n, best, _ in rows
        if (h, target) in texts
        for what in [_summary(texts[h, target])]
        # times at several sizes say nothing together; `show` has each with its sizes
        for is_dynamic in ["; " in what]
    ]  # fmt: skip
    shown = [
        (d["kernel"][:12], d["target"], str(d["records"]), str(d["timed"]), _time_text(d["best_ns"]),
         "yes" if d["tuned"] else "", _abbreviated(d["what"]))
        for d in data
    ]  # fmt: skip
    header = ("kernel", "target", "records", "timed", "fastest", "tuned", "what")
    text = table(header, shown, (0, 1, len(header) - 1)) if shown else "no records"
    where = "memory" if store.path is None else str(store.path)
    head = f"{where}: {pluralize(store.count(), 'record')}"
    if lost := store.count() - sum(d["records"] for d in data):
        head += f", {lost} of which can't be read (`tilewright records verify` says why)"
    return Result({"records": where, "kernels": data}, f"{head}\n{text}", optional=False)


def _tuned_kernels(store: "RecordStore") -> set[tuple[str, str]]:
    """Hash and target of the kernels whose newest choice on some machine is a program that won a measurement.

    A tuning also records as its choice that the constructed program stays; that one was timed without an incumbent.
    """
    from tilewright.measure.records.record import RecordKind

    newest: dict[tuple[str, str, str], Record] = {}
    for record in store.records(kinds=(RecordKind.CHOICE,)):
        key = (record.task.hash, record.task.target.name, record.machine)
        if key not in newest or record.created >= newest[key].created:
            newest[key] = record
    return {(h, target) for (h, target, _), r in newest.items() if r.is_tuned}


def _summary(task: "TaskRow") -> str:
    """The parameters of a kernel."""
    import json

    try:
        document = json.loads(task.document)
    except (ValueError, RecursionError):
        return "(its text is damaged)"
    head = str(document.get("func", "") if isinstance(document, dict) else "").partition(":\n")[0]
    # long heads have several lines
    return " ".join(head.removeprefix("func kernel").split()).replace("( ", "(").replace(" )", ")")


def _abbreviated(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."


def _time_text(nanoseconds: float | None) -> str:
    if nanoseconds is None:
        return ""
    return f"{nanoseconds / 1e6:.3f} ms" if nanoseconds >= 1e5 else f"{nanoseconds / 1e3:.2f} us"


def _task_row(store: "RecordStore", digits: str) -> "TaskRow":
    """The kernel whose hash begins with these digits.

    Raises:
        OptionError: there is none, or several.
    """
    rows = [t for t in store.tasks() if t.hash.startswith(digits)]
    count = len({t.hash for t in rows})
    if count != 1:
        what = f"there are {pluralize(count, 'kernel')} whose hash begins with {digits!r}"
        raise OptionError(what, where="kernel", hint="`tilewright records list` shows them")
    return rows[0]


def _show(options: argparse.Namespace, store: "RecordStore") -> Result:
    from tilewright.measure.records.record_json import encode_fields
    from tilewright.optimize import task_json

    row = _task_row(store, options.kernel)
    records = list(store.records(row.hash))
    task = row.task()
    lines = [f"kernel {row.hash}, {row.target}", str(task_json.encode(task)["func"])]
    for record in sorted(records, key=lambda r: (r.kind, r.nanoseconds or 0))[:MAX_SHOWN]:
        lines += ["", _line_of(record), *(f"    {step}" for trace in record.traces for step in trace)]
    if len(records) > MAX_SHOWN:
        lines.append(f"... {len(records) - MAX_SHOWN} more")
    data = {"task": task_json.encode(task), "records": [encode_fields(r, row.hash) for r in records]}
    return Result(data, "\n".join(lines), optional=False)


def _line_of(record: "Record") -> str:
    from tilewright.optimize.measurer import Timing

    time = _time_text(record.nanoseconds)
    if time:
        sizes = ", ".join(f"{name}={n}" for name, n in record.sizes.items())
        how = "measured" if isinstance(record.result, Timing) else "estimated"
        what = f"{how} {time}{' at ' * bool(sizes)}{sizes}, {record.kind.name.lower()}"
    else:
        what = str(record.result)
    by = f" by {record.optimizer}" if record.optimizer else ""
    settings = f" ({record.settings})" if record.settings else ""
    return f"{what}{by}{settings}, {record.machine}, {record.generator}"


def _show_best(options: argparse.Namespace, store: "RecordStore") -> Result:
    from tilewright.driver.build import make_build
    from tilewright.driver.options import CompileOptions
    from tilewright.machine import Target
    from tilewright.measure.records.record_json import encode_fields

    row = _task_row(store, options.kernel)
    target = Target.parse(row.target)
    build = make_build(CompileOptions(machine=options.machine, target=target), target, False)
    ranked = store.best(row.task(), build.machine_for(target), limit=MAX_SHOWN)
    data = [{"proximity": x.proximity.name.lower(), **encode_fields(x.record, row.hash)} for x in ranked]
    lines = [f"{x.proximity.name.lower().replace('_', ' ')}: {_line_of(x.record)}" for x in ranked]
    return Result(data, "\n".join(lines) or "no program is known", optional=False)


def _export_store(options: argparse.Namespace, store: "RecordStore") -> Result:
    from tilewright.measure.records.jsonl import lines_of_rows

    skip = _Skipped(options.quiet)
    rows = store.rows("t.hash = ?", (_task_row(store, options.kernel).hash,)) if options.kernel else store.rows()
    return _write_export(options, lines_of_rows(rows, skip), None)


def _write_export(options: argparse.Namespace, lines: Iterator[str], records: int | None) -> Result:
    from tilewright.measure.records.jsonl import write_lines

    if options.output is None:
        # nothing is printed of a store that turns out to be damaged meanwhile
        with tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as file:
            file.writelines(lines)
            file.seek(0)
            sys.stdout.writelines(file)
        return Result(None if not options.json else {"output": None})
    size = write_lines(Path(options.output), lines)
    count = "" if records is None else f"{pluralize(records, 'record')}, "
    return Result({"output": options.output, "bytes": size}, f"{options.output}: {count}{size_text(size)}")


def _export_model(options: argparse.Namespace, source: RecordSource) -> Result:
    """Compiles a model with the records, and writes those that it used."""
    from tilewright.driver.compile import make_compilation
    from tilewright.measure.records.jsonl import lines_of

    used: list[Record] = []
    resources = replace(build_options(options), records=replace(source, used=used), with_code=False)
    compilation = with_progress(
        options, lambda report: make_compilation(options.model, compile_options(options), report, resources=resources)
    )
    result = _write_export(options, lines_of(used), len(used))
    data: dict[str, Any] = {"records": len(used), "kernels": len(compilation.kernels)}
    return replace(result, data={**(result.data or {}), **data})


def _import(options: argparse.Namespace, store: "RecordStore") -> Result:
    from tilewright.measure.records.jsonl import Imported, import_lines, is_lines, open_records
    from tilewright.measure.records.maintain import merge

    skip = _Skipped(options.quiet)
    total = Imported(0, 0, 0)
    for name in options.files:
        if is_lines(name):
            with open(name, "rb") as file:
                result = import_lines(file, store, f"file '{name}'", skip)
        else:
            with open_records(name, skip) as other:
                result = merge(other, store, skip)
        total = Imported(total.added + result.added, total.known + result.known, total.skipped + result.skipped)
    data = {"added": total.added, "known": total.known, "skipped": total.skipped, "records": store.count()}
    skipped = f", {total.skipped} skipped" if total.skipped else ""
    text = f"added {pluralize(total.added, 'record')}, {total.known} known{skipped}; {store.count()} in {store.path}"
    return Result(data, text, optional=True)


def _prune(options: argparse.Namespace, store: "RecordStore") -> Result:
    from tilewright.measure.records.maintain import KEEP, prune

    removed = prune(store, KEEP if options.keep is None else options.keep)
    data = {"removed": removed, "records": store.count()}
    return Result(data, f"removed {pluralize(removed, 'record')}, {store.count()} left", optional=False)


def _verify(options: argparse.Namespace, store: "RecordStore", known: Sequence[str] = ()) -> Result:
    from tilewright.measure.records.maintain import verify_store

    verification = with_progress(
        options, lambda report: verify_store(store, lambda done, total: report("records", done, total))
    )
    problems = [*known, *verification.problems]
    data = {"records": verification.records, "programs": verification.programs, "problems": problems}
    head = f"{pluralize(verification.records, 'record')}, {pluralize(verification.programs, 'program')} verified"
    text = "\n".join([head, *problems]) if problems else f"{head}: all right"
    return Result(data, text, VERIFICATION_FAILED if problems else 0, optional=False)
