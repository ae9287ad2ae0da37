"""Compilation targets: architecture, CPU features, vector registers.

A `Target` is part of every cache key and is recorded in every artifact. Equal targets print equally, and a host always
has the same target.
"""

from dataclasses import dataclass
from functools import lru_cache

from tilewright.errors import OptionError, TargetError
from tilewright.machine.cpu_features import (
    AARCH64_FEATURES,
    X86_LEVELS,
    host_arch,
    host_features,
    level_features,
    with_prerequisites,
)

_NAMES = ", ".join(["host", *X86_LEVELS, "aarch64"])
# features of the next level that a host may have beyond its own, as far as generated code uses them
_OPTIONAL_FEATURES = ("avx", "avx2", "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl", "bmi2", "f16c", "fma")

MIN_VECTOR_BITS = 128
"""The narrowest vector register of all architectures."""


def register_lanes(vector_bits: int, bits: int, extent: int | None = None) -> int:
    """How many elements of `bits` bits a vector register of `vector_bits` bits holds, at least 1; with an extent, the
    narrowest register that holds so many elements, or the widest."""
    width = vector_bits
    while extent is not None and width > MIN_VECTOR_BITS and extent * bits <= width // 2:
        width //= 2
    return max(1, width // bits)


@dataclass(frozen=True, slots=True)
class Target:
    """A compilation target.

    Attributes:
        arch: "x86_64" or "aarch64".
        name: canonical name, which `Target.parse` turns back into an equal target ("x86-64-v3", "x86-64-v2+avx").
        cpu: processor name for LLVM, always a generic one, so that hosts with equal features share one target.
        features: LLVM feature flags with their signs, sorted by name.
        vector_bits: width of a vector register.
        vector_registers: number of architectural vector registers.
    """

    arch: str
    name: str
    cpu: str
    features: tuple[str, ...]
    vector_bits: int
    vector_registers: int

    @staticmethod
    def host() -> "Target":
        """The target of this machine.

        Raises:
            TargetError: the architecture is neither x86-64 nor AArch64.
        """
        return _host_target()

    @staticmethod
    def parse(text: str) -> "Target":
        """Target by name: "host", "aarch64", a level "x86-64" ... "x86-64-v4", or a level and features "x86-64-v2+avx".

        Raises:
            TargetError: unknown name or feature.
        """
        level, *extra = text.strip().lower().replace("x86_64", "x86-64").split("+")
        if level in ("host", "native") and not extra:
            return Target.host()
        if level in ("aarch64", "arm64") and not extra:
            return _aarch64()
        if level not in X86_LEVELS:
            raise TargetError(f"unknown target, expected one of {_NAMES}", where=f"target {text!r}")
        unknown = sorted(set(extra) - set(_OPTIONAL_FEATURES))
        if unknown:
            known = ", ".join(_OPTIONAL_FEATURES)
            raise TargetError(f"unknown feature {unknown[0]!r}, expected one of {known}", where=f"target {text!r}")
        return _x86(with_prerequisites(frozenset([*level_features(level), *extra])))

    @staticmethod
    def of(target: "Target | str | None") -> "Target":
        """The target that an argument denotes: a target, the name of one, or None for this machine's.

        Raises:
            OptionError: something else.
            TargetError: unknown name or feature.
        """
        if target is None:
            return Target.host()
        if isinstance(target, Target):
            return target
        if not isinstance(target, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may have no types
            raise OptionError(f"expected a name or a Target, got {type(target).__name__}", where="target")
        return Target.parse(target)

    @property
    def triple(self) -> str:
        """LLVM target triple."""
        return f"{self.arch}-unknown-linux-gnu"

    @property
    def feature_string(self) -> str:
        """Features in the form of LLVM's target machine."""
        return ",".join(self.features)

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the features that a machine must have to run code for this target, sorted."""
        return tuple(flag[1:] for flag in self.features if flag[0] == "+")

    @property
    def runs_here(self) -> bool:
        """Whether this machine can run code for this target."""
        return self.arch == host_arch() and not self.missing_on_host()

    @property
    def mask_registers(self) -> bool:
        """Whether vectors of every width have mask registers (AVX-512VL), so that masks are cheap."""
        return self.has("avx512vl")

    def has(self, feature: str) -> bool:
        """Whether generated code may use the feature (LLVM's name, without a sign)."""
        return f"+{feature}" in self.features

    def lanes(self, bits: int, extent: int | None = None) -> int:
        """How many elements of `bits` bits one vector register holds, at least 1.

        Args:
            bits: of an element.
            extent: elements to hold, None for any number: the lanes of the narrowest register that holds so many. Such
                vectors take fewer cycles where the datapath is narrower than the registers, and their loads and stores,
                which count whole even where lanes are masked, cross fewer cache lines.
        """
        return register_lanes(self.vector_bits, bits, extent)

    def missing_on_host(self) -> tuple[str, ...]:
        """Required features that this machine lacks, sorted."""
        return tuple(sorted(set(self.required) - host_features()))

    def check_host(self, where: str = "") -> None:
        """Checks that this machine can run code for this target.

        Raises:
            TargetError: names both architectures, or every missing feature.
        """
        check_host(self.arch, self.required, where or f"target '{self.name}'")

    def __str__(self) -> str:
        return self.name


def check_host(arch: str, required: tuple[str, ...], where: str) -> None:
    """Checks an architecture and its features against this machine.

    Raises:
        TargetError: names both architectures, or every missing feature.
    """
    here = host_arch()
    if arch != here:
        raise TargetError(f"code for {arch}, this machine is {here}", where=where, hint="compile for this machine")
    missing = sorted(set(required) - host_features())
    if missing:
        hint = f"compile with --target {_best_level()} or for the machine it runs on"
        raise TargetError(f"this machine lacks the CPU features {', '.join(missing)}", where=where, hint=hint)


def _best_level() -> str:
    if host_arch() != "x86_64":
        return "aarch64"
    fitting = [level for level in X86_LEVELS if set(level_features(level)) <= host_features()]
    return fitting[-1] if fitting else "x86-64"


@lru_cache(maxsize=1)
def _host_target() -> Target:
    arch = host_arch()
    if arch == "aarch64":
        return _aarch64()
    if arch == "x86_64":
        return _x86(host_features())
    raise TargetError(f"this machine is {arch}, expected x86_64 or aarch64", where="target 'host'")


def _aarch64() -> Target:
    return Target("aarch64", "aarch64", "generic", tuple(f"+{name}" for name in AARCH64_FEATURES), 128, 32)


def _x86(available: frozenset[str]) -> Target:
    """The largest target within the available features."""
    levels = [level for level in X86_LEVELS if set(level_features(level)) <= available]
    level = levels[-1] if levels else "x86-64"
    extra = [f for f in _OPTIONAL_FEATURES if f in available and with_prerequisites(frozenset([f])) <= available]
    extra = sorted(set(extra) - set(level_features(level)))
    names = sorted({*level_features(level), *extra})
    wide = "avx512f" in names
    flags = [f"+{name}" for name in names]
    if wide:
        # LLVM's x86-64-v4 splits 512-bit vectors by default; register tiles are chosen for whole ones
        flags.append("-prefer-256-bit")
    bits = 512 if wide else 256 if "avx" in names else 128
    return Target("x86_64", "+".join([level, *extra]), level, tuple(flags), bits, 32 if wide else 16)
