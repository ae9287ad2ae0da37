"""Manifest: an artifact's description of its inputs, outputs, symbolic dimensions, and steps of one inference.

Plain frozen data, written as JSON. A compiled model is a list of steps over named values: a native step is a group of
functions in the object code, a fallback step is a small ONNX model for the reference evaluator. Usually there is
exactly one native step.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tilewright.errors import ArtifactError
from tilewright.machine import Target

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
        dims: per dimension a size, the name of a symbolic dimension, or None (unchecked). Outputs may have printed
            expressions.
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
    """

    prefix: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    weights: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    constraints: tuple[ConstraintSpec, ...] = ()
    nodes: tuple[str, ...] = ()


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


ManifestStep = NativeStep | FallbackStep


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """The target of the object code, and the CPU features that it needs."""

    triple: str
    cpu: str
    features: tuple[str, ...]
    required: tuple[str, ...]

    @staticmethod
    def of(target: Target) -> "TargetSpec":
        """The spec of a target."""
        return TargetSpec(target.triple, target.cpu, target.features, target.required)

    @property
    def arch(self) -> str:
        """Architecture, the first part of the triple."""
        return self.triple.split("-")[0]


@dataclass(frozen=True, slots=True)
class ModelMeta:
    """The metadata of the user's model."""

    graph_name: str = ""
    producer_name: str = ""
    producer_version: str = ""
    domain: str = ""
    model_version: int = 0
    description: str = ""
    custom: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """The machine description that the optimizer used: its name, its origin ("stored", "shipped", "features",
    "generic", "file", "argument"), and the SHA-256 of its content."""

    name: str
    origin: str
    sha256: str


@dataclass(frozen=True, slots=True)
class BuildSpec:
    """How the code was made: equal models, options, versions and build specs give equal bytes anywhere.

    Attributes:
        version: of tilewright.
        optimizer: its name.
        seed: of the optimizer's random numbers; None where it uses none.
        machine: description that the optimizer used; None where it uses none.
        convolutions: permitted algorithms: "direct", or "safe" or "fast" minimal filtering.
        fusion: how chains of contractions were fused: "mcfuser", "chimera" or "unfused".
        variants: the largest number of programs of a kernel.
    """

    version: str
    optimizer: str
    seed: int | None = None
    machine: MachineSpec | None = None
    convolutions: str = "direct"
    fusion: str = "unfused"
    variants: int = 1


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
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    symbols: tuple[SymbolSpec, ...]
    steps: tuple[ManifestStep, ...]
    target: TargetSpec
    meta: ModelMeta = field(default_factory=ModelMeta)
    build: BuildSpec | None = None

    def weight_names(self) -> frozenset[str]:
        """Names of all weights that the steps need."""
        names: set[str] = set()
        for step in self.steps:
            names.update(step.weights if isinstance(step, NativeStep) else [step.model])
        return frozenset(names)

    def problems(self) -> list[str]:
        """All inconsistencies, one sentence each; empty for a valid manifest."""
        return list(_find_problems(self))

    def check(self, where: str) -> None:
        """Raises ArtifactError, with the first of `problems`, unless the manifest is consistent."""
        for problem in self.problems():
            raise ArtifactError(problem, where=where, hint="compile the model again")


def format_dims(dims: Iterable[Dim]) -> str:
    """Sizes for users: "[batch, 3, ?]"."""
    return f"[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"


def _find_problems(manifest: Manifest) -> Iterable[str]:
    symbols = [symbol.name for symbol in manifest.symbols]
    yield from _find_duplicates("symbol", symbols)
    yield from _find_duplicates("input", [spec.name for spec in manifest.inputs])
    for symbol in manifest.symbols:
        if symbol.hi is not None and symbol.hi < symbol.lo:
            yield f"symbol '{symbol.name}' has the empty range {symbol.lo}..{symbol.hi}"
    declared = frozenset(symbols)
    yield from _find_spec_problems(manifest.inputs, declared, DTYPES | FALLBACK_DTYPES, "input")
    values = {spec.name: spec for spec in manifest.inputs}
    bound = _dim_names(manifest.inputs)
    prefixes: list[str] = []
    for step in manifest.steps:
        native = isinstance(step, NativeStep)
        dtypes = DTYPES if native else DTYPES | FALLBACK_DTYPES
        yield from _find_spec_problems(step.inputs, declared, dtypes, "step input")
        # sizes of native outputs are computed by the code, so their dims may be printed expressions
        yield from _find_spec_problems(step.outputs, None if native else declared, dtypes, "step output")
        for spec in step.inputs:
            yield from _find_use_problems(spec, values, f"step input '{spec.name}'")
        bound |= _dim_names(step.inputs)
        if native:
            prefixes.append(step.prefix)
            for name in step.symbols:
                if name not in declared or name not in bound:
                    yield f"symbol '{name}' is bound by no input"
        else:
            bound |= _dim_names(step.outputs)
        values.update((spec.name, spec) for spec in step.outputs)
    yield from _find_duplicates("entry prefix", prefixes)
    yield from _find_spec_problems(manifest.outputs, None, DTYPES | FALLBACK_DTYPES, "output")
    for spec in manifest.outputs:
        yield from _find_use_problems(spec, values, f"output '{spec.name}'")


def _find_use_problems(spec: TensorSpec, values: Mapping[str, TensorSpec], what: str) -> Iterable[str]:
    """A value must be computed before it is read, with the dtype and rank that the reader declares."""
    computed = values.get(spec.name)
    if computed is None:
        yield f"{what} is computed by no earlier step"
    elif (computed.dtype, len(computed.dims)) != (spec.dtype, len(spec.dims)) and spec.dtype != "any":
        yield f"{what} is read as {spec}, but computed as {computed}"


def _dim_names(specs: Iterable[TensorSpec]) -> set[str]:
    return {dim for spec in specs for dim in spec.dims if isinstance(dim, str)}


def _find_duplicates(kind: str, names: list[str]) -> Iterable[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield f"{kind} '{name}' appears twice"
        seen.add(name)


def _find_spec_problems(
    specs: tuple[TensorSpec, ...], symbols: frozenset[str] | None, dtypes: frozenset[str], kind: str
) -> Iterable[str]:
    for spec in specs:
        if spec.dtype not in dtypes:
            yield f"{kind} '{spec.name}' has the unknown type '{spec.dtype}'"
        for dim in spec.dims:
            if isinstance(dim, int) and dim < 0:
                yield f"{kind} '{spec.name}' has the negative size {dim}"
            if symbols is not None and isinstance(dim, str) and dim not in symbols:
                yield f"{kind} '{spec.name}' has the undeclared symbol '{dim}'"
