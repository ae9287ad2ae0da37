"""A case: a computation, the layouts of its parameters and a schedule, as data, so that it travels and shrinks."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.computations import KINDS, RandomComputation
from tests.fuzz.draw import random_step
from tests.fuzz.layouts import random_layout
from tests.fuzz.options import Choice, Options

from tilewright.errors import LayoutError, ScheduleError
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Computation
from tilewright.expr.define import collect_stages
from tilewright.expr.nodes import Buffer, Const, Expr, Var, const
from tilewright.expr.traversal import free_vars
from tilewright.layout.layout import Layout
from tilewright.layout.rewrite_stage import rewrite_stage, stored_buffer
from tilewright.loops.ir import EXPANDED, Block, Func, walk
from tilewright.loops.lowering import lower_to_loops
from tilewright.schedule.step import Trace, apply
from tilewright.schedule.trace_json import decode, encode

ATTEMPTS = 14
"""Steps that are tried for one program."""

MOST_POINTS, MOST_COPIES = 12_000, 48
"""Iterations of all blocks, and copies of them in the code, beyond which a step is not taken: they only cost time."""

Tally = dict[str, list[int]]
"""How often every primitive was applied and rejected."""


@dataclass(frozen=True)
class Case:
    """One program of a campaign.

    Attributes:
        kind: of the computation, see `computations.KINDS`.
        record: the choices that make it.
        layouts: of parameters, by name.
        trace: the schedule.
        seed: of the data and of the order of concurrent loops.
    """

    kind: str
    record: Mapping[str, Choice]
    layouts: Mapping[str, Layout] = field(default_factory=dict[str, Layout])
    trace: Trace = ()
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """The case as JSON values."""
        layouts = {name: layout.to_json() for name, layout in self.layouts.items()}
        return {"kind": self.kind, "record": dict(self.record), "layouts": layouts, "trace": encode(self.trace),
                "seed": self.seed}  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Case":
        """The case that `to_json` wrote."""
        layouts = {name: Layout.from_json(value) for name, value in data["layouts"].items()}
        return cls(data["kind"], data["record"], layouts, decode(data["trace"]), data["seed"])

    @classmethod
    def load(cls, path: Path) -> "Case":
        """The case of a file."""
        return cls.from_json(json.loads(path.read_text())["case"])

    def program(self, dtype: str | None = None) -> "Program":
        """The computation with its untransformed loops; `dtype` replaces the element type."""
        record = dict(self.record) if dtype is None else {**self.record, "dtype": dtype}
        options = Options(record)
        computation = KINDS[self.kind](options)
        return Program.of(computation, options)


@dataclass(frozen=True)
class Program:
    """The untransformed program of a computation.

    Attributes:
        func: its loops over row-major tensors.
        stages: its computations.
        sizes: the symbols' values.
        least: the symbols' least values.
        linear: see `RandomComputation`.
        record: the choices as they were understood: within their ranges.
    """

    func: Func
    stages: tuple[Computation, ...]
    sizes: Mapping[str, int]
    least: Mapping[str, int]
    linear: bool
    record: Mapping[str, Choice]

    @classmethod
    def of(cls, computation: RandomComputation, options: Options) -> "Program":
        """The program that makes a tensor."""
        inputs, stages = collect_stages([computation.output])
        params = (*(t.plain_buffer for t in inputs), computation.output.plain_buffer)
        func = lower_to_loops("program", stages, params, symbols_of(params, stages))
        return cls(func, stages, dict(options.sizes), dict(options.least), computation.linear, options.record)

    def stored(self, layouts: Mapping[str, Layout]) -> Func:
        """The untransformed loops over parameters in layouts.

        Raises:
            LayoutError: the computation can't be written for them.
        """
        used = {name: layout for name, layout in layouts.items() if name in {p.name for p in self.func.params}}
        if not used:
            return self.func
        stages = [rewrite_stage(s, used) for s in self.stages]
        changed = [s for s in stages if isinstance(s, Computation)]
        params = tuple(stored_buffer(p, used) for p in self.func.params)
        return lower_to_loops("program", changed, params, self.func.symbols)


def symbols_of(params: tuple[Buffer, ...], stages: tuple[Computation, ...]) -> tuple[Var, ...]:
    """The symbols of a kernel, in the order of their first use."""
    used = [n for p in params for n in p.shape] + [e for s in stages for e in (*s.output.shape, s.body)]
    symbols = (v for e in used for v in sorted(free_vars(e), key=lambda v: v.name) if v.lo is not None)
    return tuple(dict.fromkeys(symbols))


def random_case(rng: Random, tally: Tally, gpu: bool) -> Iterator[Case]:
    """A random case, growing: after every accepted step what there is so far. An exception is a failure of the step
    that `Case.trace` of the last one leads up to; its name is the last key that `tally` counted."""
    kind = rng.choice(sorted(KINDS))
    record: dict[str, Choice] = {}
    computation = KINDS[kind](Options(record, rng))
    record["whole"] = rng.random() < 0.75
    case = Case(kind, record, {}, (), rng.randrange(1 << 30))
    program = case.program()
    assert computation.output.shape == program.stages[-1].output.shape
    if rng.random() < 0.4:
        case = replace(case, layouts=random_layouts(rng, program))
    func = program.stored(case.layouts)
    yield case
    for attempt in range(rng.randint(ATTEMPTS // 2, ATTEMPTS)):
        try:
            step = random_step(rng, func, late=attempt > ATTEMPTS * 0.6, gpu=gpu)
        except ScheduleError:
            continue
        counts = tally.setdefault(step.primitive, [0, 0])
        yield replace(case, trace=(*case.trace, step))
        try:
            after = apply(func, step)
        except ScheduleError:
            counts[1] += 1
        else:
            counts[0] += 1
            if not too_large(after, program.sizes):
                func, case = after, replace(case, trace=(*case.trace, step))
        yield case


def too_large(func: Func, sizes: Mapping[str, int]) -> bool:
    """Whether it would take long to run or to compile the function."""
    points = copies = 0
    for s, loops in walk(func.body):
        if isinstance(s, Block):
            points += prod(largest(x.extent, func, sizes) for x in loops)
            copies += prod(largest(x.extent, func, sizes) for x in loops if x.kind in EXPANDED)
    return points > MOST_POINTS or copies > MOST_COPIES


def largest(extent: Expr, func: Func, sizes: Mapping[str, int]) -> int:
    """An extent as a number; of one that depends on loops, the most it may be."""
    here = substitute(extent, {s: const(sizes[s.name]) for s in func.symbols})
    return int(here.value) if isinstance(here, Const) else MOST_POINTS


def random_layouts(rng: Random, program: Program) -> dict[str, Layout]:
    """Layouts of some parameters that the computation can be written for."""
    layouts: dict[str, Layout] = {}
    for p in program.func.params:
        if p.rank and rng.random() < 0.6:
            candidate = {**layouts, p.name: random_layout(rng, p.shape)}
            try:
                program.stored(candidate)
            except LayoutError:
                continue
            layouts = candidate
    return layouts
