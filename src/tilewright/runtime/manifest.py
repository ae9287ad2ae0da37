"""Manifest: an artifact's description of its inputs, outputs, symbolic dimensions, and steps of one inference.

Plain frozen data, written as JSON. A compiled model is a tree of steps over named values: a native step is a group of
functions in the object code, a fallback step is a small ONNX model for the reference evaluator, and a conditional or a
loop has blocks of steps. Usually there is exactly one native step.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from tilewright.errors import ArtifactError, pluralize
from tilewright.runtime.manifest_meta import BuildSpec, ModelMeta, TargetSpec, VariantsSpec

Dim = int | str | None

DTYPES = frozenset([
    "float16", "bfloat16", "float32", "float64", "bool",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
])  # fmt: skip
"""Element types that native code reads and writes, by their NumPy names."""

FALLBACK_DTYPES = frozenset([
    "string", "any", "complex64", "complex128", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu", "float4_e2m1fn", "int4", "uint4", "int2", "uint2",
])  # fmt: skip
"""Types of values of fallback steps and of the model's own inputs and outputs only; "any" (a sequence, an optional
value, a tensor of any rank) is not checked at all."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A named value.

    Attributes:
        name: the value's name in the user's model.
        dtype: NumPy name of the element type (one of `ml_dtypes` where NumPy has none), or "string", or "any".
        dims: per dimension a size, a symbolic dimension's name, for outputs a printed expression, or None (unchecked).
    """

    name: str
    dtype: str
    dims: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {format_dims(self.dims)}"


@dataclass(frozen=True, slots=True)
class SymbolSpec:
    """A symbolic dimension and its inclusive range; `hi` None means unbounded."""

    name: str
    lo: int = 0
    hi: int | None = None


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """A condition that native code checks: its text ("batch == m") and its place in the model."""

    text: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class NativeStep:
    """A part of the model as native code.

    Attributes:
        prefix: of the functions `<prefix>_check`, `<prefix>_shapes`, `<prefix>_workspace` and `<prefix>_main`.
        inputs: values read, in the order of the pointers.
        outputs: values written, in the order of the pointers; `_shapes` writes one size per dimension.
        weights: names of the weights, in the order of the pointers.
        symbols: names of the symbolic dimensions, in the order of the sizes.
        constraints: the meaning of status `i + 1` of `_check`; the status after the last means that sizes are too
            large.
        nodes: the user's nodes that the step computes.
        failures: what is wrong with the data where `_main` returns `i + 1`, and the node.
    """

    prefix: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    weights: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    constraints: tuple[ConstraintSpec, ...] = ()
    nodes: tuple[str, ...] = ()
    failures: tuple[ConstraintSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class FallbackStep:
    """A part of the model for ONNX's reference evaluator.

    Attributes:
        model: name of the weight (uint8) that holds the serialized ModelProto.
        inputs: values for the graph's inputs.
        outputs: values of the graph's outputs; new symbols in their dims are bound from the actual arrays.
        nodes: the user's nodes that the step computes.
    """

    model: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SizesStep:
    """Data-dependent sizes: `symbols` get the elements at `positions` of its only input, an int64 tensor; no outputs.
    `nodes` are the user's nodes that need the sizes."""

    symbols: tuple[str, ...]
    positions: tuple[int, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConstantSpec:
    """A value that is a weight, for steps that the runtime executes itself."""

    value: TensorSpec
    weight: str


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Steps over values of their own: a branch of a conditional, or the body of a loop.

    Attributes:
        inputs: parameters, then captured values.
        captures: names of the captured values outside.
        constants: values that are weights.
        symbols: symbolic dimensions besides those outside, bound by parameters and by steps.
        steps: in order of execution.
        outputs: results; they may be inputs or constants, and one value several times.
    """

    inputs: tuple[TensorSpec, ...]
    captures: tuple[str, ...]
    constants: tuple[ConstantSpec, ...]
    symbols: tuple[SymbolSpec, ...]
    steps: tuple["ManifestStep", ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class IfStep:
    """One of two blocks, whose outputs are those of the step.

    Attributes:
        condition: name of the bool that selects the block.
        inputs: all values read.
        outputs: values written; new symbols in their dims are bound from the actual arrays.
        nodes: the user's nodes that the step computes.
    """

    condition: str
    then_block: StepBlock
    else_block: StepBlock
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: tuple[str, ...] = ()

    @property
    def blocks(self) -> tuple[StepBlock, ...]:
        """The branches."""
        return self.then_block, self.else_block


@dataclass(frozen=True, slots=True)
class LoopStep:
    """Repetition of a block.

    The block's parameters are the number of the iteration (int64), the condition (bool), and the carried values; its
    outputs the condition, unless the loop is counted, the carried values, and values that are stacked.

    Attributes:
        trip_count: name of the number of iterations; None without a limit.
        condition: name of the bool that says whether there is a first iteration; None where there is.
        initial: names of the first carried values.
        is_counted: whether the block computes no condition.
        body: the block.
        inputs: all values read.
        outputs: values written; new symbols in their dims are bound from the actual arrays.
        nodes: the user's nodes that the step computes.
    """

    trip_count: str | None
    condition: str | None
    initial: tuple[str, ...]
    is_counted: bool
    body: StepBlock
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: tuple[str, ...] = ()

    @property
    def blocks(self) -> tuple[StepBlock, ...]:
        """The body."""
        return (self.body,)


ControlFlowStep = IfStep | LoopStep
RuntimeManifestStep = FallbackStep | SizesStep | ControlFlowStep
"""Steps that the runtime executes itself."""

ManifestStep = NativeStep | RuntimeManifestStep


def all_steps(steps: Iterable[ManifestStep]) -> Iterator[ManifestStep]:
    """Steps, each followed by those of its blocks."""
    for step in steps:
        yield step
        if isinstance(step, ControlFlowStep):
            for block in step.blocks:
                yield from all_steps(block.steps)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything about a compiled model except its code and its weights.

    Attributes:
        inputs: the model's inputs, in order.
        outputs: the model's outputs, in order.
        symbols: every symbolic dimension of any spec, with unique names.
        steps: the steps of an inference, in order; values flow between them by name.
        target: what the code runs on.
        meta: the metadata of the user's model.
        build: how the code was made; None where unknown.
        constants: values that are weights, for steps that the runtime executes itself.
        variants: kernels that have several programs.
        tree: symbol of the native function that executes all steps; None where the runtime walks them.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    symbols: tuple[SymbolSpec, ...]
    steps: tuple[ManifestStep, ...]
    target: TargetSpec
    meta: ModelMeta = field(default_factory=ModelMeta)
    build: BuildSpec | None = None
    constants: tuple[ConstantSpec, ...] = ()
    variants: tuple[VariantsSpec, ...] = ()
    tree: str | None = None

    def weight_names(self) -> frozenset[str]:
        """Names of all weights that the steps need."""
        names = {c.weight for c in self.constants}
        for step in all_steps(self.steps):
            match step:
                case NativeStep():
                    names.update(step.weights)
                case FallbackStep():
                    names.add(step.model)
                case SizesStep():
                    pass
                case _:
                    names.update(c.weight for block in step.blocks for c in block.constants)
        return frozenset(names)

    @property
    def block(self) -> StepBlock:
        """Its steps as a block without captures."""
        return StepBlock(self.inputs, (), self.constants, self.symbols, self.steps, self.outputs)

    def problems(self) -> list[str]:
        """All inconsistencies, one sentence each; empty for a valid manifest."""
        prefixes = [step.prefix for step in all_steps(self.steps) if isinstance(step, NativeStep)]
        in_block = _find_block_problems(self.block, _Scope({}, frozenset(), frozenset()), "input")
        return [*in_block, *_find_duplicates("entry prefix", prefixes)]

    def check(self, where: str) -> None:
        """Raises ArtifactError, with the first of `problems`, unless the manifest is consistent."""
        for problem in self.problems():
            raise ArtifactError(problem, where=where, hint="compile the model again")


def format_dims(dims: Iterable[Dim]) -> str:
    """Sizes for users: "[batch, 3, ?]"."""
    return f"[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"


@dataclass(frozen=True, slots=True)
class _Scope:
    """What steps may refer to: values by name, declared symbols, and symbols that have a size already."""

    values: Mapping[str, TensorSpec]
    declared: Set[str]
    bound: Set[str]


def _find_block_problems(block: StepBlock, outside: _Scope, noun: str) -> Iterable[str]:
    """Problems of a block; its own values are not those outside."""
    symbols = [symbol.name for symbol in block.symbols]
    yield from _find_duplicates("symbol", [*sorted(outside.declared), *symbols])
    yield from _find_duplicates(noun, [spec.name for spec in block.inputs])
    for symbol in block.symbols:
        if symbol.hi is not None and symbol.hi < symbol.lo:
            yield f"symbol '{symbol.name}' has the empty range {symbol.lo}..{symbol.hi}"
    declared = outside.declared | set(symbols)
    constants = [c.value for c in block.constants]
    yield from _find_spec_problems((*block.inputs, *constants), declared, DTYPES | FALLBACK_DTYPES, noun)
    if len(block.captures) > len(block.inputs):
        yield f"a block of {pluralize(len(block.inputs), 'input')} captures {len(block.captures)}"
    captured = block.inputs[max(0, len(block.inputs) - len(block.captures)) :]
    for name, spec in zip(block.captures, captured, strict=False):
        yield from _find_use_problems(TensorSpec(name, spec.dtype, spec.dims), outside.values, f"captured '{name}'")
    values = {spec.name: spec for spec in (*block.inputs, *constants)}
    bound = outside.bound | _dim_names(block.inputs)
    for step in block.steps:
        yield from _find_step_problems(step, _Scope(values, declared, bound))
        bound |= _dim_names(step.inputs)
        if not isinstance(step, NativeStep):
            bound |= _dim_names(step.outputs)
        if isinstance(step, SizesStep):
            bound |= set(step.symbols)
        values.update((spec.name, spec) for spec in step.outputs)
    yield from _find_spec_problems(block.outputs, None, DTYPES | FALLBACK_DTYPES, "output")
    for spec in block.outputs:
        yield from _find_use_problems(spec, values, f"output '{spec.name}'")


def _find_step_problems(step: ManifestStep, scope: _Scope) -> Iterable[str]:
    native = isinstance(step, NativeStep)
    dtypes = DTYPES if native else DTYPES | FALLBACK_DTYPES
    yield from _find_spec_problems(step.inputs, scope.declared, dtypes, "step input")
    # sizes of native outputs are computed by the code, so their dims may be printed expressions
    yield from _find_spec_problems(step.outputs, None if native else scope.declared, dtypes, "step output")
    for spec in step.inputs:
        yield from _find_use_problems(spec, scope.values, f"step input '{spec.name}'")
    if isinstance(step, NativeStep):
        bound = scope.bound | _dim_names(step.inputs)
        for name in step.symbols:
            if name not in scope.declared or name not in bound:
                yield f"symbol '{name}' is bound by no input"
    elif isinstance(step, SizesStep):
        if len(step.inputs) != 1 or step.outputs or len(step.positions) != len(step.symbols):
            yield f"the sizes {', '.join(step.symbols)} do not fit their step"
        yield from (f"the size '{name}' is no declared symbol" for name in step.symbols if name not in scope.declared)
    elif isinstance(step, ControlFlowStep):
        yield from _find_operand_problems(step)
        for block in step.blocks:
            yield from _find_block_problems(block, scope, "block input")


def _find_operand_problems(step: ControlFlowStep) -> Iterable[str]:
    """The operands of control flow are among its inputs, and its blocks fit its outputs."""
    operands = [step.condition] if isinstance(step, IfStep) else [step.trip_count, step.condition, *step.initial]
    operands += [name for block in step.blocks for name in block.captures]
    given = {spec.name for spec in step.inputs}
    for name in operands:
        if name is not None and name not in given:
            yield f"operand '{name}' is no input of its step"
    if isinstance(step, IfStep):
        expected, parameters = len(step.outputs), 0
    else:
        expected, parameters = len(step.outputs) + (not step.is_counted), 2 + len(step.initial)
        if len(step.initial) > len(step.outputs):
            yield f"a loop carries {len(step.initial)} values, but has {pluralize(len(step.outputs), 'output')}"
    for block in step.blocks:
        if len(block.outputs) != expected or len(block.inputs) - len(block.captures) != parameters:
            yield f"a block does not fit its step: it has inputs: {len(block.inputs)}, outputs: {len(block.outputs)}"


def _find_use_problems(spec: TensorSpec, values: Mapping[str, TensorSpec], what: str) -> Iterable[str]:
    """A value must be computed before it is read, with the dtype and rank that the reader declares."""
    computed = values.get(spec.name)
    if computed is None:
        yield f"{what} is computed by no earlier step"
    elif (computed.dtype, len(computed.dims)) != (spec.dtype, len(spec.dims)) and spec.dtype != "any":
        yield f"{what} is read as {spec}, but computed as {computed}"


def _dim_names(specs: Iterable[TensorSpec]) -> frozenset[str]:
    return frozenset(dim for spec in specs for dim in spec.dims if isinstance(dim, str))


def _find_duplicates(kind: str, names: list[str]) -> Iterable[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield f"{kind} '{name}' appears twice"
        seen.add(name)


def _find_spec_problems(
    specs: tuple[TensorSpec, ...], symbols: Set[str] | None, dtypes: frozenset[str], kind: str
) -> Iterable[str]:
    for spec in specs:
        if spec.dtype not in dtypes:
            yield f"{kind} '{spec.name}' has the unknown type '{spec.dtype}'"
        for dim in spec.dims:
            if isinstance(dim, int) and dim < 0:
                yield f"{kind} '{spec.name}' has the negative size {dim}"
            if symbols is not None and isinstance(dim, str) and dim not in symbols:
                yield f"{kind} '{spec.name}' has the undeclared symbol '{dim}'"
