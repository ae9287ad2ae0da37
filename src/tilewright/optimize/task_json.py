"""JSON form of tasks.

    {"format": "tilewright-task", "version": 2,
     "func": "func kernel(a0: float32[64], out: float32[64]):\n    ...", "constants": ["a0"],
     "fusion": {"pattern": "reduction", "outer_rank": 1, "stages": [["register reduction", null]]},
     "samples": {"representative": {"n0": 24}, "shapes": [{"n0": 3}, {"n0": 24}], "grid": []}, "threads": null,
     "target": "x86-64-v4"}

The loops travel as text. The reader trusts nothing: it reports every problem, and the verifier accepts the loops before
anything is done with them. A task that was read is in canonical form, whoever wrote it.
"""

import json
from collections.abc import Mapping
from typing import Any

from tilewright.errors import TargetError, TaskError, TilewrightError
from tilewright.expr.nodes import Var
from tilewright.graph.fusion import FusedStage, Fusion, FusionPattern, StageRole
from tilewright.layout.json_document import DocumentReader, abbreviate, load_document
from tilewright.loops.ir import Func, blocks
from tilewright.loops.parser import parse
from tilewright.machine import Target
from tilewright.optimize.task import Task
from tilewright.tile.shape_samples import ShapeSamples
from tilewright.verify.verifier import verify

FORMAT = "tilewright-task"
VERSION = 2

FIELDS = ("format", "version", "func", "constants", "fusion", "samples", "threads", "target")

MAX_BYTES = 16 << 20
"""Limit of the reader, far beyond any kernel."""

MAX_THREADS = 1 << 16
MAX_SIZE = 1 << 48


def encode(task: Task) -> dict[str, Any]:
    """A task as JSON values, in canonical form."""
    return {"format": FORMAT, "version": VERSION, **task.identity, "target": task.target.name}


def dumps(task: Task) -> str:
    """A task as JSON text of one line; equal for tasks of one hash and target."""
    return json.dumps(encode(task))


def loads(text: str | bytes, where: str = "task") -> Task:
    """The task in JSON text.

    Raises:
        TaskError: the text is no task; lists every problem.
    """
    return decode(load_document(text, MAX_BYTES, TaskError, where), where)


def decode(data: object, where: str = "task") -> Task:
    """The task in JSON values, in canonical form.

    Raises:
        TaskError: the values are no task; lists every problem.
    """
    reader = _Reader("task")
    task = reader.task(data)
    if reader.problems or task is None:
        raise TaskError(reader.problems, where=where)
    return task.canonical()


class _Reader(DocumentReader):
    """Reads the fields of a task and collects problems."""

    def task(self, data: object) -> Task | None:
        """The task, or None and problems."""
        fields = self.header(data, FIELDS, VERSION)
        if fields is None:
            return None
        for name in ("samples", "threads"):
            if name not in fields:
                self.report(name, "it is missing", "null stands for the default")
        func = self._parse_func(fields.get("func"))
        target, threads = self._parse_target(fields.get("target")), self._parse_threads(fields.get("threads"))
        if func is None:
            return None
        constants = self._parse_constants(fields.get("constants"), func)
        fusion = self._parse_fusion(fields.get("fusion"), func)
        samples = self._parse_samples(fields.get("samples"), func)
        return None if target is None or fusion is None else Task(func, constants, target, fusion, samples, threads)

    def _parse_func(self, text: object) -> Func | None:
        if not isinstance(text, str):
            self.report("func", f"expected text, got {abbreviate(text)}")
            return None
        try:
            func = parse(text)
            verify(func)
        except TilewrightError as error:
            self.report(f"func, {error.where}" if error.where else "func", error.what, error.hint)
            return None
        except RecursionError:
            self.report("func", "its loops or expressions are nested too deep")
            return None
        return func

    def _parse_target(self, name: object) -> Target | None:
        try:
            target = Target.parse(name) if isinstance(name, str) else None
        except TargetError as error:
            self.report("target", error.what, error.hint)
            return None
        if target is None or target.name != name:
            self.report("target", f"expected the canonical name of a target, got {abbreviate(name)}")
            return None
        return target

    def _parse_threads(self, threads: Any) -> int | None:
        if threads is not None and (type(threads) is not int or not 1 <= threads <= MAX_THREADS):
            self.report("threads", f"expected null or a number within 1..{MAX_THREADS}, got {abbreviate(threads)}")
            return None
        return threads

    def _parse_constants(self, names: object, func: Func) -> frozenset[str]:
        if not isinstance(names, list):
            self.report("constants", f"expected a list of names, got {abbreviate(names)}")
            return frozenset()
        listed: list[Any] = names
        params = [p.name for p in func.params]
        for name in listed:
            if name not in params:
                self.report("constants", f"there is no parameter {abbreviate(name)}", f"there are {', '.join(params)}")
        return frozenset(name for name in listed if isinstance(name, str))

    def _parse_fusion(self, data: Any, func: Func) -> Fusion | None:
        """How the blocks of the function are fused; a wrong statement is refused by the primitives that rely on it."""
        if not isinstance(data, dict) or set(data) != {"pattern", "outer_rank", "stages"}:
            what = f"expected an object with `pattern`, `outer_rank` and `stages`, got {abbreviate(data)}"
            self.report("fusion", what)
            return None
        fields: dict[str, Any] = data
        pattern, rank = fields["pattern"], fields["outer_rank"]
        if pattern not in tuple(FusionPattern):
            self.report("fusion, pattern", f"expected one of {', '.join(FusionPattern)}, got {abbreviate(pattern)}")
        func_blocks = blocks(func.body)
        max_rank = min((len(b.body.indices) for b in func_blocks), default=0)
        if type(rank) is not int or not 0 <= rank <= max_rank:
            self.report("fusion, outer_rank", f"expected a number within 0..{max_rank}, got {abbreviate(rank)}")
        stages = self._parse_stages(fields["stages"], len(func_blocks))
        return None if self.problems or stages is None else Fusion(FusionPattern(pattern), rank, stages)

    def _parse_stages(self, data: Any, count: int) -> tuple[FusedStage, ...] | None:
        if not isinstance(data, list) or len(listed := list[Any](data)) != count:
            self.report("fusion, stages", f"expected a list of {count}, one per block, got {abbreviate(data)}")
            return None
        stages: list[FusedStage] = []
        for k, stage in enumerate(listed):
            role, epilogue = stage if isinstance(stage, list) and len(list[Any](stage)) == 2 else (None, None)
            is_position = epilogue is None or (type(epilogue) is int and k < epilogue < count)
            if role not in tuple(StageRole) or not is_position:
                what = f"expected a role and null or the position of a later stage, got {abbreviate(stage)}"
                self.report(f"fusion, stage {k}", what, f"the roles are {', '.join(StageRole)}")
                return None
            stages.append(FusedStage(StageRole(role), epilogue))
        return tuple(stages)

    def _parse_samples(self, data: Any, func: Func) -> ShapeSamples | None:
        if data is None:
            return None
        if not isinstance(data, dict) or set(data) != {"representative", "shapes", "grid"}:
            what = "expected null or an object with `representative`, `shapes` and `grid`"
            self.report("samples", f"{what}, got {abbreviate(data)}")
            return None
        fields: dict[str, Any] = data
        shapes, grid = (self._parse_shapes(fields[name], func, name) for name in ("shapes", "grid"))
        if not shapes:
            return None
        return ShapeSamples(
            self._parse_sizes(fields["representative"], func, "samples, representative"), shapes, grid or ()
        )

    def _parse_shapes(self, data: Any, func: Func, name: str) -> tuple[Mapping[Var, int], ...] | None:
        if not isinstance(data, list) or (not data and name == "shapes"):
            self.report(f"samples, {name}", f"expected a list of shapes, got {abbreviate(data)}")
            return None
        listed: list[Any] = data
        return tuple(self._parse_sizes(s, func, f"samples, {name}, shape {k}") for k, s in enumerate(listed))

    def _parse_sizes(self, data: Any, func: Func, where: str) -> Mapping[Var, int]:
        names = [v.name for v in func.symbols]
        if not isinstance(data, dict) or set(data) != set(names):
            self.report(where, f"expected sizes of {', '.join(names) or 'no symbols'}, got {abbreviate(data)}")
            return {}
        sizes: dict[str, Any] = data
        for name, size in sizes.items():
            if type(size) is not int or not 1 <= size <= MAX_SIZE:
                self.report(where, f"expected a size within 1..{MAX_SIZE} for {name!r}, got {abbreviate(size)}")
        return {v: sizes[v.name] for v in func.symbols}
