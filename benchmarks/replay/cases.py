"""The cases of a replay: every model for some machine and optimizer, and the mixed ones for all of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import chain

from benchmarks.replay.models import elements, moves, networks, products, refused, rows, windows
from benchmarks.replay.models.build import Model

TARGETS = {
    "avx512": ("x86-64-v4", "sapphire-rapids"),
    "avx2": ("x86-64-v3", "zen3"),
    "aarch64": ("aarch64", "neoverse-v1"),
}
"""Targets, each with a machine of the package to construct for, so that the host does not matter."""

OPTIMIZERS = ("gensor", "roller", "rule")

EVERYWHERE = (
    "matmul/constant_33x65x17", "matmul/dynamic_rows", "gemm/scaled", "conv/3x3_winograd", "conv/depthwise3_stride2",
    "conv/all_dynamic", "pool/max3_stride2", "softmax/rows", "normalise/layer", "reduce/sum", "transpose/odd",
    "chain/tanh_erf", "network/residual_block", "attention/heads",
)  # fmt: skip
"""Models that are compiled for every target by every optimizer."""


@dataclass(frozen=True)
class Case:
    """A model with the options that it is compiled with."""

    model: Model
    target: str
    optimizer: str

    @property
    def name(self) -> str:
        """The model's, with target and optimizer: "softmax/rows@avx2.gensor"."""
        return f"{self.model.name}@{self.target}.{self.optimizer}"

    @property
    def options(self) -> list[str]:
        """What the command line is told."""
        target, machine = TARGETS[self.target]
        words = ["--target", target, "--optimizer", self.optimizer]
        # the rule reads no description of a machine
        words += [] if self.optimizer == "rule" else ["--machine", machine]
        for text in self.model.shapes:
            words += ["--shape", text]
        return [*words, *self.model.options]


def models() -> Iterator[Model]:
    """All models, by family."""
    return chain.from_iterable(m.models() for m in (products, windows, rows, elements, moves, networks, refused))


def cases(pattern: str = "*") -> list[Case]:
    """The cases whose names match a pattern, as of a shell, or contain it.

    Models take turns with targets, and half of them are gensor's.
    """
    found: list[Case] = []
    optimizers = ("gensor", "roller", "gensor", "rule")
    for k, model in enumerate(models()):
        if model.name in EVERYWHERE:
            found += [Case(model, t, o) for t in TARGETS for o in OPTIMIZERS]
        else:
            found.append(Case(model, list(TARGETS)[k % 3], optimizers[k // 3 % 4]))
    return [c for c in found if fnmatch(c.name, pattern) or pattern in c.name]
