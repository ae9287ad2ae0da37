"""Whether what an optimizer constructs for an operator is right: verified, and natively equal to a float64 evaluation.

Two ways down. `driver`: the model is compiled as users compile it and called on one thread and on two. `kernel`: every
kernel is constructed for a seed and a machine of the case's choice, and runs with its arrays flush against pages that
trap.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
from tests.codegen.native import TARGETS, Native
from tests.fuzz.case import Case, Tally
from tests.fuzz.check import WrongError, guarded
from tests.fuzz.options import Choice
from tests.fuzz_construct.builder import Builder, Made, Rounding
from tests.fuzz_construct.operators import KINDS, OFTEN
from tests.optimize.programs import shape_of

from tilewright.driver.compilation import Compilation
from tilewright.driver.compile import make_compilation
from tilewright.driver.float64 import evaluate_program
from tilewright.driver.kernels import BoundKernel
from tilewright.driver.offline import Split, evaluate_packed, split_offline
from tilewright.driver.oracle import tolerance_of
from tilewright.expr.evaluate import Environment, evaluate_expr
from tilewright.expr.nodes import Var
from tilewright.graph.program import Program
from tilewright.loops.verify import verify
from tilewright.machine import Target
from tilewright.machine.shipped import shipped
from tilewright.optimize.construct.gensor import Annealing, Reading
from tilewright.optimize.construct.optimizer import Gensor, Roller
from tilewright.optimize.interface import Task
from tilewright.runtime import Executable

Array = np.ndarray[Any, Any]

OPTIMIZERS = ("gensor", "roller")
THREADS = (1, 2)

MACHINES = tuple(name for name, machine in shipped().items() if machine.arch == Target.host().arch)
"""Descriptions of processors, also of others than the target's: they change what is chosen, not what it means."""

SLACK = 8
"""Roundings of smooth functions per sum: exponentials, divisions and roots have a few of their own."""


def random_case(seed: int, index: int) -> Case:
    """The case of a number."""
    rng = Random(f"construct/{seed}/{index}")
    kind, number = rng.choice(OFTEN), rng.randrange(1 << 30)
    record: dict[str, Choice] = {}
    made_of(Case(kind, record, seed=number), rng)
    return Case(kind, record, seed=number)


def made_of(case: Case, rng: Random | None = None) -> tuple[Made, "Way"]:
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


@dataclass(frozen=True)
class Way:
    """How an operator is compiled.

    Attributes:
        optimizer: that constructs.
        target: whose instructions are used.
        driver: whether by the driver; else kernel by kernel.
        machine: whose description is used; None is the one that fits the target.
        annealing, seed: of `gensor`, where kernels are constructed one by one.
    """

    optimizer: str
    target: str
    driver: bool
    machine: str | None
    annealing: Annealing
    seed: int

    @staticmethod
    def drawn(b: Builder) -> "Way":
        """From recorded choices."""
        optimizer = b.choice("optimizer", OPTIMIZERS)
        target = b.choice("target", TARGETS)
        driver = not b.flag("by kernel", 0.6)
        machine, annealing, seed = None, Annealing(), 0
        if not driver:
            seed = b.number("walk seed", 0, 999)
            machine = b.choice("machine", MACHINES) if b.flag("other machine", 0.5) else None
            reading = Reading.PRINTED if b.flag("as printed", 0.2) else Reading.INTENDED
            annealing = Annealing(walks=b.number("walks", 1, 6), reading=reading, vthreads=not b.flag("single", 0.2))
        return Way(optimizer, target, driver, machine, annealing, seed)

    def constructor(self) -> Gensor | Roller:
        """The optimizer itself."""
        machine = None if self.machine is None else shipped()[self.machine]
        return Gensor(machine, self.annealing, self.seed) if self.optimizer == "gensor" else Roller(machine)


def check(case: Case, tally: Tally | None = None) -> None:
    """Raises a `WrongError` where what is constructed for a case is wrong.

    Args:
        case: the operator.
        tally: counts how many kernels of the kind were constructed, and how many were left to the default optimizer.
    """
    made, way = guarded("operator", lambda: made_of(case))
    compilation = guarded("compile", lambda: make_compilation(made.model, target=way.target, optimizer=way.optimizer))
    samples = [Sample.of(made, compilation, case.seed)]
    if made.symbolic:
        samples.append(Sample.of(made, compilation, case.seed + 1, least=True))
    counts = [0, 0]
    if way.driver:
        for unit in compilation.kernels:
            counts[unit.optimizer != way.optimizer] += 1
        check_model(compilation, samples, way)
    else:
        for unit in compilation.units:
            if isinstance(unit, BoundKernel):
                counts[not check_kernel(unit, compilation, samples, way)] += 1
    if tally is not None:
        total = tally.setdefault(case.kind, [0, 0])
        total[0] += counts[0]
        total[1] += counts[1]


@dataclass(frozen=True)
class Sample:
    """Inputs of the model with all values between them and the outputs, in double precision.

    Attributes:
        feeds: by name.
        values: by buffer.
        sizes: of the symbols.
        limits: by buffer how far a value may be off.
    """

    feeds: Mapping[str, Array]
    values: Mapping[str, Array]
    sizes: Mapping[Var, int]
    limits: Mapping[str, Array]

    @staticmethod
    def of(made: Made, compilation: Compilation, seed: int, least: bool = False) -> "Sample":
        """Evaluates the program."""
        feeds, program = made.feeds(seed, least), compilation.program
        kernels = [u for u in compilation.units if isinstance(u, BoundKernel)]
        wanted = {b.name for u in kernels for b in u.kernel.arguments}
        with np.errstate(all="ignore"):
            values = guarded("oracle", lambda: evaluate_program(program, feeds, wanted))
            linear = made.rounding is Rounding.LINEAR
            sums = evaluate_program(*absolute(program, feeds), wanted) if linear else values
        values |= {k: np.asarray(v) for k, v in program.constants.items()}
        sizes = {v: n for b, x in ((b, feeds[n]) for n, b in zip(program.input_names, program.inputs, strict=True))
                 for v, n in zip(b.shape, x.shape, strict=True) if isinstance(v, Var)}  # fmt: skip
        limits: dict[str, Array] = {}
        if made.rounding is not Rounding.NONE:
            unit = 0.0
            for u in kernels:
                own = {s: evaluated(e, sizes) for s, e in u.sizes.items()}
                known = {v.name: n for v, n in (own | sizes).items()}
                unit += SLACK * tolerance_of(u.compiled.origin, u.kernel.arguments[-1].dtype, known)
            for b in (*(u.kernel.arguments[-1] for u in kernels), *(b for _, b in program.outputs)):
                size = np.abs(sums[b.name])
                limits[b.name] = unit * (size if linear else np.full_like(size, size.max(initial=0))) + 1e-30
        return Sample(feeds, values, sizes, limits)


def absolute(program: Program, feeds: Mapping[str, Array]) -> tuple[Program, dict[str, Array]]:
    """A program and its inputs without signs: it adds up how large the terms are."""
    fixed = {n: np.abs(a) if a.dtype.kind == "f" else a for n, a in program.constants.items()}
    return replace(program, constants=fixed), {n: np.abs(a) for n, a in feeds.items()}


def evaluated(size: Any, sizes: Mapping[Var, int]) -> int:
    """A size in numbers."""
    return int(evaluate_expr(size, Environment({v: np.int64(n) for v, n in sizes.items()}, {})))


def check_model(compilation: Compilation, samples: list[Sample], way: Way) -> None:
    """Calls the compiled model."""
    artifact = guarded("code", compilation.artifact)
    outputs = compilation.program.outputs
    for threads in THREADS:
        executable: Executable = guarded("load", lambda t=threads: Executable(artifact, t))
        for sample in samples:
            found = guarded("call", lambda e=executable, s=sample: e.run(s.feeds))
            for name, b in outputs:
                compare(f"driver {way.target}", b.name, found[name], sample)


def check_kernel(unit: BoundKernel, compilation: Compilation, samples: list[Sample], way: Way) -> bool:
    """Constructs and runs one kernel; whether the optimizer applied."""
    origin, target = unit.compiled.origin, Target.parse(way.target)
    bound = list(zip(unit.kernel.params, unit.kernel.arguments, strict=True))
    fixed = frozenset(p.name for p, b in bound if b.name in compilation.program.constants)
    schedule = guarded("construct", lambda: way.constructor().optimize(Task(origin, fixed, target)))
    if schedule is not None:
        guarded("verify", lambda: verify(schedule.func))
    func = unit.compiled.scheduled if schedule is None else schedule.func
    split: Split = guarded("split", lambda: split_offline(func, fixed))
    native: Native = guarded(f"code {way.target}", lambda: Native(split.func, target=way.target))
    for number, sample in enumerate(samples):
        for threads, at_end in ((1 + number % 2, True), (2 - number % 2, False)):
            arrays, sizes = kernel_arrays(unit, split, sample)
            found = native(arrays, {s.name: sizes[s] for s in split.func.symbols}, threads, at_end=at_end)
            out, b = bound[-1]
            compare(f"kernel {way.target}", b.name, found[out.name].reshape(sample.values[b.name].shape), sample)
    return schedule is not None


def kernel_arrays(unit: BoundKernel, split: Split, sample: Sample) -> tuple[dict[str, Array], dict[Var, int]]:
    """What a kernel's function is called with: inputs, packed constants, garbage elsewhere; and its sizes."""
    sizes = {s: evaluated(e, sample.sizes) for s, e in unit.sizes.items()} | dict(sample.sizes)
    known: dict[str, Array] = {}
    for p, b in zip(unit.kernel.params[:-1], unit.kernel.arguments[:-1], strict=True):
        known[p.name] = sample.values[b.name].astype(p.dtype.numpy).reshape(shape_of(p, sizes))
    known |= evaluate_packed(split.packed, known)
    garbage = {b.name: np.full(shape_of(b, sizes), 77, b.dtype.numpy) for b in split.func.params if b.name not in known}
    return {b.name: (known | garbage)[b.name] for b in split.func.params}, sizes


def compare(stage: str, name: str, found: Array, sample: Sample) -> None:
    """Raises a failure where a result differs by more than rounding."""
    right, got = sample.values[name], np.asarray(found)
    if got.shape != right.shape:
        raise WrongError(stage, f"{name}: expected shape {list(right.shape)}, got {list(got.shape)}")
    wide = got.astype(np.float64) if got.dtype.kind == "f" else got
    limit = sample.limits.get(name, 0.0)
    with np.errstate(invalid="ignore"):
        wrong = ~((wide == right) | (np.abs(wide - right) <= limit) | (np.isnan(wide) & np.isnan(right)))
    if wrong.any():
        place = tuple(int(k[0]) for k in np.nonzero(wrong)) if wrong.ndim else ()
        count = f"{int(wrong.sum())} of {got.size} wrong"
        raise WrongError(stage, f"{name}{list(place)}: expected {right[place]}, got {wide[place]}; {count}")


def cases(seed: int, count: int) -> Iterator[Case]:
    """The first cases of a seed."""
    for index in range(count):
        yield random_case(seed, index)
