"""What a manifest says of the model, the target and the build besides the steps."""

from dataclasses import dataclass

from tilewright.machine import Target


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
class VariantsSpec:
    """The programs of one kernel, of which the sizes of a call select one; for reports, execution does not read it.

    Attributes:
        kernel: name of its function.
        nodes: the model's nodes that it computes.
        symbols: names of the symbolic dimensions that decide; expressions call them s0, s1, ...
        selector: the index of the program that runs, as text.
        programs: the programs in words.
        picoseconds: their estimated times as text; empty where none were made.
    """

    kernel: str
    nodes: tuple[str, ...]
    symbols: tuple[str, ...]
    selector: str
    programs: tuple[str, ...]
    picoseconds: tuple[str, ...]


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
