"""JSON form of records, and their form as rows of a store.

    {"task": "<hash>", "machine": "zen5, 2 cores, 01234...", "generator": "0.1.0+...", "optimizer": "gensor",
     "settings": "", "created": 1790000000.0,
     "programs": [[["split", {"loop": "i0", "factor": 4, ...}], ..]], "selector": null,
     "estimates": [], "trees": [],
     "result": {"kind": "timing", "nanoseconds": 812.5, ...}, "sizes": {"n0": 8}, "worst_ratio": null,
     "choice": false}

The reader trusts nothing. `read_row` checks the form of all fields and the names of primitives, which is enough to keep
a record; `decode_row` checks the arguments of steps and makes values of it; replaying checks that the steps are legal.
"""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from typing import Any, cast

from tilewright.errors import Defect, ParseError, RecordError, TraceError, TreeError
from tilewright.expr.algebra.bounds import NO_BOUNDS
from tilewright.expr.algebra.prover import can_prove_non_negative
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Binary, Expr
from tilewright.expr.parser import parse_expr
from tilewright.expr.printer import show
from tilewright.expr.traversal import post_order
from tilewright.layout.json_document import abbreviate
from tilewright.measure.records.record import Record, RecordKind, Result, record_kind
from tilewright.measure.records.result_json import (
    MAX_NANOSECONDS,
    MAX_PROGRAMS,
    decode_result,
    encode_result,
    read_result,
)
from tilewright.optimize.interface import ProgramEstimate
from tilewright.optimize.task import Task
from tilewright.optimize.task_json import MAX_SIZE
from tilewright.schedule import trace_json
from tilewright.schedule.step import PRIMITIVES
from tilewright.tile import tree_json

MAX_BYTES = 1 << 20
"""Limit of a record, far beyond any schedule."""

MAX_STEPS = 10_000
MAX_TEXT = 300
MAX_SECONDS = 1e11

_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)

Report = Callable[[str, str], None]
"""Called with the place and the description of a problem."""

_IDENTITY = ("machine", "generator", "optimizer", "settings")
"""Texts that identify what a record is for."""

_HEAD_FIELDS = ("task", *_IDENTITY, "created")
_BODY_FIELDS = ("programs", "selector", "estimates", "trees", "result", "sizes", "worst_ratio", "choice")

FIELDS = (*_HEAD_FIELDS, *_BODY_FIELDS)


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A record as a store keeps it, without its task.

    Attributes:
        machine, generator, optimizer, settings: as of the record.
        kind: what it is.
        rank: the order among records of one kind, the smallest first: nanoseconds; the newest choice first; programs
            that were timed on a busy machine after all others.
        created: seconds since the epoch.
        body: compressed JSON of the other fields.
        content: SHA-256 of that text, where it has been computed.
    """

    machine: str
    generator: str
    optimizer: str
    settings: str
    kind: RecordKind
    rank: float
    created: float
    body: bytes
    content: bytes = b""

    def digest(self, task: str) -> bytes:
        """Identifies the record: equal for equal records of one task, given by hash and target.

        Raises:
            RecordError: its body is damaged.
        """
        # what was constructed follows from what it is for, so it does not matter when
        is_constructed = self.kind in (RecordKind.CONSTRUCTION, RecordKind.ESTIMATE)
        created = None if is_constructed else self.created
        identity = [task, self.machine, self.generator, self.optimizer, self.settings, created]
        content = self.content or sha256(_inflated(self.body)).digest()
        return sha256(json.dumps(identity).encode() + content).digest()[:16]


def encode_fields(record: Record, task: str) -> dict[str, Any]:
    """A record as JSON values that name its task by an identifier."""
    return {
        "task": task,
        "machine": record.machine,
        "generator": record.generator,
        "optimizer": record.optimizer,
        "settings": record.settings,
        "created": record.created,
        "programs": [[[s["primitive"], s["args"]] for s in trace_json.encode(t)["steps"]] for t in record.traces],
        "selector": None if record.selector is None else show(record.selector),
        "estimates": [[e.program, show(e.picoseconds)] for e in record.estimates],
        "trees": [tree_json.encode(t) for t in record.trees],
        "result": encode_result(record.result),
        "sizes": dict(record.sizes),
        "worst_ratio": record.worst_ratio,
        "choice": record.is_choice,
    }


def fields_of_row(row: RecordRow, task: str) -> dict[str, Any]:
    """The JSON values of a row.

    Raises:
        RecordError: its body is damaged.
    """
    try:
        body = loads_record(_inflated(row.body))
    except ValueError as error:
        raise RecordError([Defect("record", "", f"it is damaged: {error}")]) from None
    values = {n: body[n] for n in _BODY_FIELDS if n in body} if isinstance(body, dict) else {}
    return {"task": task, **{n: getattr(row, n) for n in _IDENTITY}, "created": row.created, **values}


def checked_row(row: RecordRow) -> RecordRow:
    """The row that has the content of one of a store that others have written.

    Raises:
        RecordError: it is no record; lists every problem.
    """
    return read_row(fields_of_row(row, ""))


def row_of(record: Record) -> RecordRow:
    """The row of a record.

    Raises:
        RecordError: a value is out of its range.
    """
    return read_row(encode_fields(record, ""))


def read_row(data: object, body: bytes | None = None) -> RecordRow:
    """The row of a record in JSON values; checks the form of every field.

    Args:
        data: the values.
        body: their text without those of the head, where it is at hand (`body_of_line`).

    Raises:
        RecordError: the values are no record; lists every problem.
    """
    problems: list[Defect] = []

    def report(where: str, what: str) -> None:
        problems.append(Defect("record", where, what))

    if not isinstance(data, dict):
        report("", f"expected an object, got {type(data).__name__}")
        raise RecordError(problems)
    fields: dict[str, Any] = data
    if fields.keys() != set(FIELDS):
        for name in sorted(set(FIELDS) - fields.keys()):
            report(name, "it is missing")
        for name in sorted(fields.keys() - set(FIELDS)):
            report(abbreviate(name), f"there is no such field; there are {', '.join(FIELDS)}")
        raise RecordError(problems)
    for name in _IDENTITY:
        text = fields[name]
        if not isinstance(text, str) or len(text) > MAX_TEXT or not is_encodable(text):
            report(name, f"expected a text of at most {MAX_TEXT} characters, got {abbreviate(text)}")
    programs = fields["programs"]
    _check_programs(programs, report)
    _check_scalars(fields, report)
    result = read_result(fields["result"], report)
    if problems or result is None:
        raise RecordError(problems)
    if programs and fields["selector"] is None and len(programs) != 1:
        report("selector", "it is missing, as there are several programs")
    if not programs and result["kind"] != "estimate":
        report("programs", "a program that was measured has steps, got none")
    if fields["choice"] and result["kind"] != "timing":
        report("choice", "a choice has been timed")
    if problems:
        raise RecordError(problems)
    value = decode_result(result)
    kind = record_kind(value, len(programs), fields["choice"])
    body = _ENCODER.encode({n: fields[n] for n in _BODY_FIELDS}).encode() if body is None else body
    if len(body) > MAX_BYTES:
        report("", f"it exceeds {MAX_BYTES} bytes")
        raise RecordError(problems)
    if not _has_characters(body):
        report("", "a text has a lone surrogate, which is no character")
        raise RecordError(problems)
    machine, generator, optimizer, settings = (fields[n] for n in _IDENTITY)
    created = float(fields["created"])
    order, content = _rank_among_kind(kind, value, created), sha256(body).digest()
    packed = zlib.compress(body, 1)
    return RecordRow(machine, generator, optimizer, settings, kind, order, created, packed, content)


def is_encodable(text: str) -> bool:
    """Whether a text consists of characters: a lone surrogate is none, and can't be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _has_characters(body: bytes) -> bool:
    """Whether all texts in JSON text consist of characters."""
    try:
        body.decode()
        if b"\\ud" in body or b"\\uD" in body:
            json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeError:
        return False
    return True


def _rank_among_kind(kind: RecordKind, result: Result, created: float) -> float:
    """The order among records of one kind."""
    if kind is RecordKind.CHOICE:
        return -created
    value = getattr(result, "nanoseconds", 0.0)
    if isinstance(value, tuple):
        value = value[0] if value else 0.0
    return value + (MAX_NANOSECONDS if getattr(result, "is_disturbed", False) else 0.0)


def time_of_rank(rank: float) -> float:
    """Nanoseconds of a timed program of this rank."""
    return rank % MAX_NANOSECONDS


def _check_programs(programs: Any, report: Report) -> None:
    if not isinstance(programs, list) or len(cast(list[Any], programs)) > MAX_PROGRAMS:
        report("programs", f"expected a list of at most {MAX_PROGRAMS}, got {abbreviate(programs)}")
        return
    for k, steps in enumerate(cast(list[Any], programs)):
        if not isinstance(steps, list) or len(cast(list[Any], steps)) > MAX_STEPS:
            report(f"program {k}", f"expected a list of at most {MAX_STEPS} steps, got {abbreviate(steps)}")
            continue
        for number, step in enumerate(cast(list[Any], steps), 1):
            if not isinstance(step, list) or len(cast(list[Any], step)) != 2:
                problem = f"expected a primitive and its arguments, got {abbreviate(step)}"
            elif type(step[0]) is not str or step[0] not in PRIMITIVES:
                problem = f"there is no primitive {abbreviate(step[0])}"
            elif type(step[1]) is not dict:
                problem = f"expected arguments by name, got {abbreviate(step[1])}"
            else:
                continue
            report(f"program {k}, step {number}", problem)
            return


def _check_scalars(fields: Mapping[str, Any], report: Report) -> None:
    selector, sizes = fields["selector"], fields["sizes"]
    if selector is not None and (not isinstance(selector, str) or len(selector) > MAX_BYTES):
        report("selector", f"expected null or an expression, got {abbreviate(selector)}")
    if not isinstance(fields["trees"], list) or len(cast(list[Any], fields["trees"])) not in (
        0,
        len(fields["programs"]),
    ):
        report("trees", f"expected none, or one per program, got {abbreviate(fields['trees'])}")
    estimates = fields["estimates"]
    if not isinstance(estimates, list) or len(cast(list[Any], estimates)) not in (0, len(fields["programs"])):
        report("estimates", f"expected none, or one per program, got {abbreviate(estimates)}")
    elif not all(_is_estimate(e) for e in cast(list[Any], estimates)):
        report("estimates", f"expected the program and its time, as texts, got {abbreviate(estimates)}")
    if not isinstance(sizes, dict) or not all(type(n) is int and 1 <= n <= MAX_SIZE for n in sizes.values()):
        report("sizes", f"expected sizes within 1..{MAX_SIZE} by name, got {abbreviate(sizes)}")
    ratio = fields["worst_ratio"]
    if ratio is not None and not (type(ratio) in (int, float) and isfinite(ratio) and ratio > 0):
        report("worst_ratio", f"expected null or a positive number, got {abbreviate(ratio)}")
    if type(fields["choice"]) is not bool:
        report("choice", f"expected true or false, got {abbreviate(fields['choice'])}")
    created = fields["created"]
    if type(created) not in (int, float) or not 0 <= created <= MAX_SECONDS:
        report("created", f"expected seconds within 0..{MAX_SECONDS:g}, got {abbreviate(created)}")


def _is_estimate(data: Any) -> bool:
    return isinstance(data, list) and [type(x) for x in cast(list[Any], data)] == [str, str]


def decode_row(row: RecordRow, task: Task) -> Record:
    """The record of a row and its task.

    Raises:
        RecordError: it can't be read, or does not fit the task; lists every problem.
    """
    fields = fields_of_row(row, "")
    read_row(fields)  # others may have written it
    try:
        traces = tuple(trace_json.decode(_trace_document(p), "program") for p in fields["programs"])
        trees = tuple(tree_json.decode(x) for x in fields["trees"])
    except (TraceError, TreeError) as error:
        raise RecordError(error.problems) from error
    selector = None if fields["selector"] is None else _decode_index(fields["selector"], task)
    estimates = tuple(ProgramEstimate(text, _decode_index(time, task)) for text, time in fields["estimates"])
    if unknown := fields["sizes"].keys() - {v.name for v in task.func.symbols}:
        raise RecordError([Defect("record", "sizes", f"the kernel has no symbol {abbreviate(min(unknown))}")])
    return Record(
        task, traces, decode_result(fields["result"]), row.optimizer, row.machine, row.generator, row.settings,
        selector, estimates, trees, fields["sizes"], fields["worst_ratio"], fields["choice"],
        fields["created"],
    )  # fmt: skip


def body_of_line(line: bytes) -> bytes | None:
    """The text of a record's body in a line as exports have it; None for another order or spacing, which is encoded
    again. Encoding takes a quarter of the time of an import."""
    start, line = line.find(b',"programs":'), line.rstrip()
    if start < 0 or not line.startswith(b'{"record":{') or not line.endswith(b"}}"):
        return None
    try:
        head = json.loads(line[:start] + b"}}")
    except ValueError:
        return None
    return b"{" + line[start + 1 : -1] if head["record"].keys() == set(_HEAD_FIELDS) else None


def _trace_document(steps: Sequence[Sequence[Any]]) -> dict[str, Any]:
    listed = [{"primitive": name, "args": args} for name, args in steps]
    return {"format": trace_json.FORMAT, "version": trace_json.VERSION, "steps": listed}


def loads_record(text: bytes) -> Any:
    """The values of JSON text; faster than `load_strict_json`, as the last of repeated fields counts.

    Raises:
        ValueError: it is no JSON, has a number that is not finite, or is too long or nested too deeply.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"it exceeds {MAX_BYTES} bytes")
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _reject_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


def _inflated(body: bytes) -> bytes:
    """The text of a row's body.

    Raises:
        RecordError: it is damaged.
    """
    try:
        return zlib.decompressobj().decompress(body, MAX_BYTES + 1)
    except zlib.error as error:
        raise RecordError([Defect("record", "", f"it is damaged: {error}")]) from None


def _decode_index(text: str, task: Task) -> Expr:
    """The selector, or the estimate of a program, in text.

    Raises:
        RecordError: it is none over the sizes of the task, or may overflow.
    """
    try:
        selector = parse_expr(text, {v.name: v for v in task.func.symbols}, {})
    except (ParseError, RecursionError) as error:
        raise RecordError([Defect("record", "selector", f"can't be read: {error}")]) from error
    if selector.dtype != int64:
        raise RecordError([Defect("record", "selector", f"expected an int64 index, got {selector.dtype.name}")])
    # code computes x // 0 as 0; a negative divisor may overflow
    divisions = (e for e in post_order(selector) if isinstance(e, Binary) and e.op in ("div", "floordiv", "mod"))
    if not all(can_prove_non_negative(e.b, NO_BOUNDS) for e in divisions):
        raise RecordError([Defect("record", "selector", "it may divide by a negative number")])
    return selector
