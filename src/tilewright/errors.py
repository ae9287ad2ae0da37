"""Exceptions and warnings of the package.

A user's mistake raises a subclass of `TilewrightError`: a stable code, what is wrong, where in the user's model, file
or argument, and how to fix it. A bug of the compiler raises `InternalError`, whose text says how to report it. All
problems of a model are collected in `ModelError.problems`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


def pluralize(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun: "1 node", "2 nodes"; `plural` is one that has not only an "s" more."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


class TilewrightError(Exception):
    """Base of all errors; prints as `[code] where: what; what to do`.

    Args:
        what: one sentence, "expected X, got Y" wherever two things are compared.
        where: the user's node, file, tensor or argument ("node 'conv1' (Conv)", "input 'x'", "file 'a.onnx'").
        hint: what the user can do about it.
    """

    code: ClassVar[str] = "error"

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what, self.where, self.hint = what, where, hint
        super().__init__(what, where, hint)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f"; {self.hint}" if self.hint else ""
        return f"[{self.code}] {place}{self.what}{advice}"


@dataclass(frozen=True, slots=True)
class Defect:
    """One defect of a model or trace: a stable code, the location, the description and a hint."""

    code: str
    where: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        advice = f"; {self.hint}" if self.hint else ""
        return f"[{self.code}] {self.where}: {self.what}{advice}"


class ModelError(TilewrightError):
    """The model is not valid; `problems` lists every defect found, not only the first."""

    code = "model"

    def __init__(self, problems: Sequence[Defect], *, where: str = "model") -> None:
        self.problems = tuple(problems)
        lines = "\n  ".join(str(p) for p in self.problems)
        super().__init__(f"{pluralize(len(self.problems), 'problem')}\n  {lines}", where=where)


class ModelFileError(TilewrightError):
    """The model's file can't be read: missing, truncated, not ONNX, external data outside its folder."""

    code = "model-file"


class ShapeError(TilewrightError):
    """Shapes that do not match, in the model or in a feed; a size outside its declared range."""

    code = "shape"


class FeedError(TilewrightError):
    """An input of a call is missing, unknown, of the wrong type or of the wrong shape."""

    code = "feed"


class EvaluatorError(TilewrightError):
    """A fallback node failed on ONNX's reference evaluator: malformed, unknown to it, or with unsuitable data."""

    code = "evaluator"


class LoopError(TilewrightError):
    """A loop of a model that does not end."""

    code = "loop"


class OptionError(TilewrightError):
    """An argument, option or environment variable has a value that can't be used."""

    code = "option"


class TargetError(TilewrightError):
    """An unknown target, or one whose CPU features the host lacks."""

    code = "target"


class MachineError(TilewrightError):
    """A machine description that can't be read or is inconsistent, or an unreliable calibration."""

    code = "machine"


class MeasureError(TilewrightError):
    """Programs cannot be measured here: no process can be started, or the task is not one that a measurer takes."""

    code = "measure"


class SourcesChangedError(MeasureError):
    """The package's sources have changed since this process has imported them: others would run another version."""

    def __init__(self) -> None:
        what = "the sources of this package have changed since this process has imported them"
        hint = "start this program again; if that changes nothing, they are newer than the clock: set it"
        super().__init__(what, where="measurer", hint=hint)


class UnsupportedError(TilewrightError):
    """The compiler can't express this operator with these inputs; the reference evaluator runs it instead."""

    code = "unsupported"


class ArtifactError(TilewrightError):
    """An artifact is truncated, altered, from a newer format, or can't be written."""

    code = "artifact"


class ParseError(TilewrightError):
    """Printed IR that does not parse; states line and column."""

    code = "parse"


class VerifyError(TilewrightError):
    """Loop IR that is not well-formed: types, bounds, scopes, races, use before definition."""

    code = "verify"


class DefinitionError(TilewrightError, TypeError):
    """An invalid tensor expression: wrong rank, types that do not match, an unknown axis."""

    code = "definition"


class MismatchError(TilewrightError):
    """Two programs that should be equivalent differ; states the output, the element and both values."""

    code = "mismatch"


class LayoutError(TilewrightError):
    """A layout primitive that does not match the shape, or an invalid layout; states dimension and sizes."""

    code = "layout"


class ScheduleError(TilewrightError):
    """An illegal schedule primitive; states the loop or block and the reason."""

    code = "schedule"


class DataError(TilewrightError):
    """Data of the package that can't be read; `problems` lists every defect found, not only the first."""

    def __init__(self, problems: Sequence[Defect], *, where: str) -> None:
        self.problems = tuple(problems)
        if len(self.problems) == 1:
            only = self.problems[0]
            super().__init__(only.what, where=f"{where}, {only.where}" if only.where else where, hint=only.hint)
            return
        lines = "\n  ".join(str(p) for p in self.problems)
        super().__init__(f"{pluralize(len(self.problems), 'problem')}\n  {lines}", where=where)


class TraceError(DataError):
    """A recorded schedule that can't be read; `problems` lists every defect found, not only the first."""

    code = "trace"

    def __init__(self, problems: Sequence[Defect], *, where: str = "trace") -> None:
        super().__init__(problems, where=where)


class TaskError(DataError):
    """A stored task that can't be read; `problems` lists every defect found, not only the first."""

    code = "task"

    def __init__(self, problems: Sequence[Defect], *, where: str = "task") -> None:
        super().__init__(problems, where=where)


class TreeError(DataError, ScheduleError):
    """A tile tree that can't be read, or that does not fit its kernel; `problems` lists every defect found."""

    code = "tree"

    def __init__(self, problems: Sequence[Defect], *, where: str = "tile tree") -> None:
        super().__init__(problems, where=where)


class RecordError(DataError):
    """A record of a program that can't be read; `problems` lists every defect found, not only the first."""

    code = "record"

    def __init__(self, problems: Sequence[Defect], *, where: str = "record") -> None:
        super().__init__(problems, where=where)


class StoreError(TilewrightError):
    """A store of records that can't be used: damaged, of a newer format, read-only, full, or locked by others; and a
    compilation from records alone that lacks some."""

    code = "records"


class DamagedStoreError(StoreError):
    """A store of records whose file is damaged, of which a part may be left."""


class TilewrightWarning(UserWarning):
    """Base of all warnings for users."""


class RecordWarning(TilewrightWarning):
    """Records were not used: the user's store can't be read, or programs do not fit their kernels; one warning lists
    all of them."""


class CacheWarning(TilewrightWarning):
    """What a compilation became can't be kept, as the cache folder can't be used; names the folder and the reason."""


class SearchWarning(TilewrightWarning):
    """A search chooses programs without a learned model, as XGBoost is not installed."""


class MachineWarning(TilewrightWarning):
    """A machine of a cluster is not used, or is lost; says why. What it had not done others do."""


class FallbackWarning(TilewrightWarning):
    """Nodes of a model run on ONNX's reference evaluator, which is slow; one warning lists all of them."""


class ShapeWarning(TilewrightWarning):
    """Declared shapes of a model differ from the computed ones, which are used; one warning lists all of them."""


class InternalError(TilewrightError):
    """A bug of the compiler; please report it with the model or the output of `tilewright inspect`."""

    code = "internal"

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        ask = "this is a fault of tilewright: report it with the output of `tilewright doctor --json` and the model"
        report = hint or ask
        super().__init__(what, where=where, hint=report)
