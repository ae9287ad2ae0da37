"""Alternatives: equivalent stages for parts of a program, chosen by the estimated time of the kernels that they become.

A rewrite proposes alternatives. Each replaces some steps (`before`) by others (`after`) with the same results. What
else stays the same, so an alternative is judged by the kernels around it that differ: the partition of the replaced
steps with the element-wise computations that follow, which may be fused with them, against that of the new ones.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from tilewright.errors import InternalError
from tilewright.expr.computation import Computation, Stage
from tilewright.expr.nodes import Buffer
from tilewright.graph.ir import Array
from tilewright.graph.kernel import Kernel
from tilewright.graph.partition import partition
from tilewright.graph.program import Program, Step, step_outputs
from tilewright.machine.map_in_threads import map_in_threads

MAX_TIME_RATIO = 0.95
"""An alternative that rounds differently must take less than this share of the time: estimates err, and the original
rounds less."""

_log = logging.getLogger("tilewright.alternatives")


@dataclass(frozen=True, slots=True, eq=False)
class Alternative:
    """Equivalent stages for some steps of a program.

    Attributes:
        name: what it is, such as "winograd F(2x2, 3x3)".
        before: the steps that it replaces, in order; all but the last are read by no other step.
        after: the stages in their place, in order; the last one writes what the last of `before` writes.
        why: what it saves.
        error_growth: upper bound of its rounding errors over those of `before`; 1 where it rounds alike.
        constants: how the data of new constants is computed, by the buffers that `after` reads.
    """

    name: str
    before: tuple[Stage, ...]
    after: tuple[Stage, ...]
    why: str
    error_growth: float = 1.0
    constants: Mapping[Buffer, Callable[[], Array]] = field(default_factory=dict[Buffer, Callable[[], Array]])

    @property
    def replaces(self) -> tuple[str, ...]:
        """Names of the buffers that the replaced steps write."""
        return tuple(s.output.name for s in self.before)

    @property
    def label(self) -> str:
        """The user's name of the node that it computes."""
        return self.before[-1].label

    @property
    def max_time_ratio(self) -> float:
        """The share of the original's time below which it is chosen."""
        return MAX_TIME_RATIO if self.error_growth > 1 else 1.0


Rewrite = Callable[[Program, float], Iterable[Alternative]]
"""Proposes alternatives for a program whose `error_growth` is below a limit; at a limit of 1 those that round alike."""

KernelCost = Callable[[Kernel, frozenset[str]], float | None]
"""Nanoseconds of a kernel, given the names of the program's constants; None where there is no estimate."""


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """An alternative that was considered.

    Attributes:
        alternative: the alternative.
        before: nanoseconds of the kernels that it changes, as they are; None where there is no estimate.
        after: nanoseconds of the kernels that take their place; None where there is no estimate.
        chosen: whether the program has it.
        reason: why, or why not.
    """

    alternative: Alternative
    before: float | None
    after: float | None
    chosen: bool
    reason: str

    def __str__(self) -> str:
        verb, times = "chosen" if self.chosen else "not chosen", times_text(self.before, self.after)
        return f"{self.alternative.label}: {self.alternative.name}: {times}, {verb}: {self.reason}"


def times_text(before: float | None, after: float | None) -> str:
    """Two times in nanoseconds, of which either may be unknown, as text."""
    return " -> ".join("unknown" if t is None else f"{t / 1e3:.1f} us" for t in (before, after))


PrepareCosts = Callable[[Iterable[tuple[Kernel, frozenset[str]]]], None]
"""Is told the kernels, with the names of the program's constants, whose cost will probably be asked for."""


def choose(
    program: Program,
    rewrites: Sequence[Rewrite],
    cost: KernelCost,
    max_error_growth: float,
    prepare: PrepareCosts | None = None,
) -> tuple[Program, tuple[Evaluation, ...]]:
    """The program with the alternatives that are estimated to be faster, and every alternative that was considered.

    Of alternatives that compute the same buffer the one that saves most time is chosen; later ones are judged in the
    program with those chosen before. The program is the same object where none is. Evaluations go to the logger
    `tilewright.alternatives`, too, at level info.

    Args:
        program: as the graph was lowered.
        rewrites: propose the alternatives, each for the program that the ones before it left.
        cost: estimates a kernel.
        max_error_growth: rounding errors grow by less than this factor; 1 for alternatives that round alike only.
        prepare: is told the kernels of every rewrite before `cost` is asked for them.
    """
    evaluations: list[Evaluation] = []
    for rewrite in rewrites:
        unchanged, candidates = program, list(rewrite(program, max_error_growth))
        changes = [_changed_kernels(program, a) for a in candidates]
        if prepare is not None:
            prepare(k for x in changes for k in x.all)
        for _, group in groupby(zip(candidates, changes, strict=True), key=lambda x: x[0].before[-1].output):
            group = list(group)
            if program is not unchanged:
                group = [(a, _changed_kernels(program, a)) for a, _ in group]
            rivals = _evaluate(group, cost)
            program = apply_alternatives(program, [e.alternative for e in rivals if e.chosen])
            evaluations += rivals
    for evaluation in evaluations:
        _log.info("%s", evaluation)
    return program, tuple(evaluations)


def _evaluate(changes: Sequence[tuple[Alternative, "_ChangedKernels"]], cost: KernelCost) -> list[Evaluation]:
    """Evaluates alternatives of which at most one can be chosen."""
    rivals = [a for a, _ in changes]
    times = [_changed_times(changed, cost) for _, changed in changes]
    objections = [_objection(a, *t) for a, t in zip(rivals, times, strict=True)]
    best = max((k for k, text in enumerate(objections) if not text), key=lambda k: _gain(*times[k]), default=-1)
    evaluations: list[Evaluation] = []
    for k, (a, (before, after)) in enumerate(zip(rivals, times, strict=True)):
        reason = objections[k] or (a.why if k == best else f"{rivals[best].name} saves more")
        evaluations.append(Evaluation(a, before, after, k == best, reason))
    return evaluations


def _gain(before: float | None, after: float | None) -> float:
    return 0.0 if before is None or after is None else before - after


def _objection(a: Alternative, before: float | None, after: float | None) -> str:
    """What keeps an alternative from being chosen, apart from better ones; empty where nothing does."""
    if before is None or after is None:
        return "there is no estimate"
    if after >= before:
        return "it is not faster"
    if after >= a.max_time_ratio * before:
        return f"it gains less than {1 - a.max_time_ratio:.0%} and rounds more"
    return ""


def apply_alternatives(program: Program, alternatives: Sequence[Alternative]) -> Program:
    """The program with some steps replaced; the program itself where there are no alternatives.

    Constants and names of values that nothing refers to any more are dropped.

    Args:
        program: a program.
        alternatives: for different steps of it.

    Raises:
        InternalError: two alternatives replace a step, one replaces a step that does not exist, or a new buffer has a
            name that is taken.
    """
    if not alternatives:
        return program
    _check_clashes(program, alternatives)
    steps = program.steps
    for a in alternatives:
        steps = _replace_steps(steps, a)
    new = [(b.name, compute) for a in alternatives for b, compute in a.constants.items()]
    arrays = map_in_threads(lambda constant: constant[1](), new)
    constants = dict(program.constants) | {name: data for (name, _), data in zip(new, arrays, strict=True)}
    read = {b.name for s in steps for b in s.inputs} | {b.name for _, b in program.outputs}
    live = read | {b.name for s in steps for b in step_outputs(s)} | {b.name for b in program.inputs}
    return replace(
        program,
        steps=steps,
        constants={n: data for n, data in constants.items() if n in read},
        values={n: b for n, b in program.values.items() if b.name in live},
    )


def _check_clashes(program: Program, alternatives: Sequence[Alternative]) -> None:
    replaced = [n for a in alternatives for n in a.replaces]
    new = [b.name for a in alternatives for b in (*(s.output for s in a.after[:-1]), *a.constants)]
    written = {b.name for s in program.steps for b in step_outputs(s)}
    clashes = {n for names in (replaced, new) for n in names if names.count(n) > 1}
    clashes |= (set(replaced) - written) | (set(new) & program.buffer_names)
    if clashes:
        raise InternalError(f"alternatives clash at {', '.join(sorted(clashes))}", where="program alternatives")


def _replace_steps(steps: Sequence[Step], a: Alternative) -> tuple[Step, ...]:
    """The steps with `after` in the place of the last of `before`, without the others."""
    replaced = {s.output for s in a.before}
    result: list[Step] = []
    for step in steps:
        if replaced.isdisjoint(step_outputs(step)):
            result.append(step)
        elif a.before[-1].output in step_outputs(step):
            result += a.after
    return tuple(result)


@dataclass(frozen=True, slots=True)
class _ChangedKernels:
    """The kernels that an alternative changes, as they are and with it, and the names of constants."""

    removed: tuple[Kernel, ...]
    added: tuple[Kernel, ...]
    constants: frozenset[str]

    @property
    def all(self) -> Iterator[tuple[Kernel, frozenset[str]]]:
        return ((k, self.constants) for k in (*self.removed, *self.added))


def _changed_kernels(program: Program, a: Alternative) -> _ChangedKernels:
    before = _surroundings(program, a.before)
    new_inputs = (*before.inputs, *a.constants)
    after = replace(before, inputs=new_inputs, steps=_replace_steps(before.steps, a))
    constants = frozenset(program.constants) | {b.name for b in a.constants}
    old, new = (dict.fromkeys(u for u in partition(p).units if isinstance(u, Kernel)) for p in (before, after))
    return _ChangedKernels(tuple(k for k in old if k not in new), tuple(k for k in new if k not in old), constants)


def _changed_times(changed: _ChangedKernels, cost: KernelCost) -> tuple[float | None, float | None]:
    """Nanoseconds of the kernels that an alternative changes, as they are and with it."""
    removed, added = ([cost(k, changed.constants) for k in kernels] for kernels in (changed.removed, changed.added))
    return _total(removed), _total(added)


def _total(times: Sequence[float | None]) -> float | None:
    known = [t for t in times if t is not None]
    return sum(known) if len(known) == len(times) else None


def _surroundings(program: Program, stages: Sequence[Stage]) -> Program:
    """Stages of a program with the computations that may be fused with them, as a program of their own.

    These are the element-wise computations that depend on the stages, and what nothing else reads than all of these,
    back to the reductions whose epilogues are among them: the alternative may win or lose an epilogue.
    """
    written = {s.output for s in stages}
    for step in program.steps:
        if isinstance(step, Computation) and not step.is_reduction and not written.isdisjoint(step.inputs):
            written.add(step.output)
    read = {b for s in program.steps if not written.isdisjoint(step_outputs(s)) for b in s.inputs}
    for step in reversed(program.steps):
        if isinstance(step, Computation) and step.output in read - written:
            readers = [s for s in program.steps if step.output in s.inputs]
            if all(not written.isdisjoint(step_outputs(s)) for s in readers):
                written.add(step.output)
                read.update(() if step.is_reduction else step.inputs)
    steps = [s for s in program.steps if not written.isdisjoint(step_outputs(s))]
    inside = {id(s) for s in steps}
    read_later = {b for s in program.steps if id(s) not in inside for b in s.inputs} | {b for _, b in program.outputs}
    operands = dict.fromkeys(b for s in steps for b in s.inputs if b not in written)
    return replace(
        program,
        inputs=tuple(b for b in operands if b.name not in program.constants),
        outputs=tuple((b.name, b) for s in steps for b in step_outputs(s) if b in read_later),
        constants={b.name: program.constants[b.name] for b in operands if b.name in program.constants},
        steps=tuple(steps),
    )
