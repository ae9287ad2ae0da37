"""Whether what an optimizer constructs for an operator is right: verified, and natively equal to a float64 evaluation.

Two ways down. `driver`: the model is compiled as users compile it and called on one thread and on two. `kernel`: every
kernel is constructed for a seed and a machine of the case's choice, and runs with its arrays flush against pages that
trap.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from tests.codegen.native import Native
from tests.fuzz.case import Case, Tally
from tests.fuzz.check import WrongError, guarded
from tests.fuzz.options import Choice
from tests.fuzz_construct.builder import Builder, RandomModel, Sizes
from tests.fuzz_construct.operators import KINDS, OFTEN
from tests.fuzz_construct.refusals import Refusals
from tests.fuzz_construct.sample import Array, Sample, evaluated
from tests.fuzz_construct.way import Way
from tests.optimize.programs import shape_of

from tilewright.driver.compilation import Compilation
from tilewright.driver.kernel_build.kernels import BoundKernel
from tilewright.expr.nodes import Var, const
from tilewright.loops.private_memory import workspace_of
from tilewright.lower.prepack_constants import PrepackedKernel, evaluate_prepacked, prepack_constants
from tilewright.machine import Target
from tilewright.optimize.task import Task
from tilewright.runtime import Executable
from tilewright.verify.verifier import verify

THREADS = (1, 2)


def random_case(seed: int, index: int) -> Case:
    """The case of a number."""
    rng = Random(f"construct/{seed}/{index}")
    kind, number = rng.choice(OFTEN), rng.randrange(1 << 30)
    record: dict[str, Choice] = {}
    random_model(Case(kind, record, seed=number), rng)
    return Case(kind, record, seed=number)


def random_model(case: Case, rng: Random | None = None) -> tuple[RandomModel, "Way"]:
    """The operator of a case and how it is compiled; choices that the record lacks are drawn, or the simplest."""
    builder = Builder(case.record, rng, case.seed)  # type: ignore[arg-type]
    way = Way.drawn(builder)
    return KINDS[case.kind](builder), way


def understood(case: Case) -> Case:
    """The case with the choices as they were understood: within their ranges, the others left out."""
    record = dict(case.record)
    builder = Builder(record, None, case.seed)
    asked = _Asked(builder)
    Way.drawn(builder)
    KINDS[case.kind](builder)
    return replace(case, record={name: record[name] for name in record if name in asked.names})


class _Asked:
    """Notes which choices a builder is asked for."""

    def __init__(self, builder: Builder) -> None:
        self.names = {"whole"}
        for method in ("choice", "flag", "number"):
            setattr(builder, method, self._noted(getattr(builder, method)))

    def _noted(self, method: Any) -> Any:
        def ask(name: str, *args: Any) -> Any:
            self.names.add(name)
            return method(name, *args)

        return ask


def check(case: Case, tally: Tally | None = None) -> None:
    """Raises a `WrongError` where what is constructed for a case is wrong.

    Args:
        case: the operator.
        tally: counts how many kernels of the kind were constructed, and how many were left to the rule; under "KIND,
            refused" programs that could not be lowered, and kernels that were left to the rule for that.
    """
    with Refusals() as refused:
        counts = _checked(case)
    if tally is not None:
        for name, kernel_counts in (
            (case.kind, counts),
            (f"{case.kind}, refused", (refused.next_taken, refused.rule_taken)),
        ):
            if any(kernel_counts):
                total = tally.setdefault(name, [0, 0])
                total[0] += kernel_counts[0]
                total[1] += kernel_counts[1]


def _checked(case: Case) -> tuple[int, int]:
    """How many kernels of a case were constructed, and how many were left to the rule; all compute what is right."""
    model, way = guarded("operator", lambda: random_model(case))
    compilation: Compilation = guarded("compile", lambda: way.compiled(model))
    which = tuple(Sizes) if model.symbolic else (Sizes.DRAWN,)
    samples = [Sample.of(model, compilation, case.seed + k, sizes) for k, sizes in enumerate(which)]
    counts = [0, 0]
    if way.driver:
        for unit in compilation.kernels:
            counts[unit.optimizer != way.optimizer] += 1
        check_model(compilation, samples, way)
    else:
        for unit in compilation.units:
            if isinstance(unit, BoundKernel):
                counts[not check_kernel(unit, compilation, samples, way)] += 1
    return counts[0], counts[1]


def check_model(compilation: Compilation, samples: list[Sample], way: Way) -> None:
    """Calls the compiled model."""
    artifact = guarded("code", compilation.artifact)
    outputs = compilation.program.outputs
    for threads in THREADS:
        executable: Executable = guarded("load", lambda t=threads: Executable(artifact, t))
        for sample in samples:
            guarded("call", lambda e=executable, s=sample: e.run(s.others))
            results = guarded("call", lambda e=executable, s=sample: e.run(s.feeds))
            for name, b in outputs:
                compare(f"driver {way.target}", b.name, results[name], sample)


def check_kernel(unit: BoundKernel, compilation: Compilation, samples: list[Sample], way: Way) -> bool:
    """Constructs and runs one kernel; whether the optimizer applied."""
    origin, target = unit.compiled.origin, Target.parse(way.target)
    bound = list(zip(unit.kernel.params, unit.kernel.arguments, strict=True))
    fixed = frozenset(p.name for p, b in bound if b.name in compilation.program.constants)
    schedule = guarded("construct", lambda: way.constructor().optimize(Task(origin, fixed, target, unit.kernel.fusion)))
    if schedule is not None:
        guarded("verify", lambda: verify(schedule.func))
    func = unit.compiled.programs[0].scheduled if schedule is None else schedule.func
    split: PrepackedKernel = guarded("split", lambda: prepack_constants(func, fixed))
    native: Native = guarded(f"code {way.target}", lambda: Native(split.func, target=way.target))
    for number, sample in enumerate(samples):
        for threads, at_end in ((1 + number % 2, True), (2 - number % 2, False)):
            arrays, sizes = kernel_arrays(unit, split, sample)
            outputs = native(arrays, {s.name: sizes[s] for s in split.func.symbols}, threads, at_end=at_end)
            for out, b in zip(unit.kernel.outputs, unit.kernel.writes, strict=True):
                compare(f"kernel {way.target}", b.name, outputs[out.name].reshape(sample.values[b.name].shape), sample)
    return schedule is not None


def kernel_arrays(unit: BoundKernel, split: PrepackedKernel, sample: Sample) -> tuple[dict[str, Array], dict[Var, int]]:
    """What a kernel's function is called with: inputs, packed constants, garbage elsewhere; and its sizes."""
    sizes = {s: evaluated(e, sample.sizes) for s, e in unit.sizes.items()} | dict(sample.sizes)
    arrays: dict[str, Array] = {}
    for p, b in zip(unit.kernel.inputs, unit.kernel.reads, strict=True):
        arrays[p.name] = sample.values[b.name].astype(p.dtype.numpy).reshape(shape_of(p, sizes))
    arrays |= evaluate_prepacked(split.prepacked, arrays)
    garbage = {
        b.name: np.full(shape_of(workspace_of(split.func, b, const(2)), sizes), 77, b.dtype.numpy)
        for b in split.func.params
        if b.name not in arrays
    }
    return {b.name: (arrays | garbage)[b.name] for b in split.func.params}, sizes


def compare(stage: str, name: str, value: Array, sample: Sample) -> None:
    """Raises a failure where a result differs by more than rounding."""
    right, actual = sample.values[name], np.asarray(value)
    if actual.shape != right.shape:
        raise WrongError(stage, f"{name}: expected shape {list(right.shape)}, got {list(actual.shape)}")
    wide = actual.astype(np.float64) if right.dtype.kind == "f" else actual
    limit = sample.limits.get(name, 0.0)
    with np.errstate(invalid="ignore"):
        wrong = ~((wide == right) | (np.abs(wide - right) <= limit) | (np.isnan(wide) & np.isnan(right)))
    if wrong.any():
        place = tuple(int(k[0]) for k in np.nonzero(wrong)) if wrong.ndim else ()
        count = f"{int(wrong.sum())} of {actual.size} wrong"
        raise WrongError(stage, f"{name}{list(place)}: expected {right[place]}, got {wide[place]}; {count}")


def cases(seed: int, count: int) -> Iterator[Case]:
    """The first cases of a seed."""
    for index in range(count):
        yield random_case(seed, index)
