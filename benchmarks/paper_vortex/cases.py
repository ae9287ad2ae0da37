"""Shapes of the experiments: products and convolutions of DeepBench, and layers of transformers and picture networks.

`deepbench_gemm.csv` and `deepbench_conv.csv` hold DeepBench's inference kernels (baidu-research/DeepBench,
code/kernels), which match the counts and ranges of Vortex' tables 3 and 4. The other suites are known by their ranges
only; their cases are drawn by a seed.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent

MAX_MULTIPLY_ADDS = 5e8
"""Of one case: the oracle times a hundred programs of it."""

MAX_ELEMENTS = 1 << 24
"""Of one tensor."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """A product of M x K and K x N elements, the second operand constant; M is the dynamic size.

    Attributes:
        m, n, k: the sizes.
        most_rows: upper end of the declared range of M.
    """

    m: int
    n: int
    k: int
    most_rows: int

    @property
    def name(self) -> str:
        """Its name in results."""
        return f"gemm {self.m} x {self.n} x {self.k}"

    @property
    def multiply_adds(self) -> float:
        """Work of a call."""
        return float(self.m) * self.n * self.k

    @property
    def largest(self) -> int:
        """Elements of the largest tensor."""
        return max(self.m * self.k, self.k * self.n, self.m * self.n)


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution with constant weights; height and width of the picture are the dynamic sizes.

    Attributes:
        n, c, h, w: batch, channels and picture.
        o, r, s: output channels and window.
        pad_h, pad_w, stride_h, stride_w: padding and strides.
    """

    n: int
    c: int
    h: int
    w: int
    o: int
    r: int
    s: int
    pad_h: int
    pad_w: int
    stride_h: int
    stride_w: int

    @property
    def name(self) -> str:
        """Its name in results."""
        window = f"{self.r}x{self.s} by {self.stride_h}x{self.stride_w}"
        return f"conv {self.n} x {self.c} x {self.h} x {self.w} to {self.o}, {window}"

    @property
    def result(self) -> tuple[int, int]:
        """Height and width of the result."""
        return (
            (self.h + 2 * self.pad_h - self.r) // self.stride_h + 1,
            (self.w + 2 * self.pad_w - self.s) // self.stride_w + 1,
        )

    @property
    def multiply_adds(self) -> float:
        """Work of a call."""
        height, width = self.result
        return float(self.n) * self.o * height * width * self.c * self.r * self.s

    @property
    def largest(self) -> int:
        """Elements of the largest tensor."""
        height, width = self.result
        weights = self.o * self.c * self.r * self.s
        return max(self.n * self.c * self.h * self.w, self.n * self.o * height * width, weights)


Case = Gemm | Conv


def all_cases() -> list[Case]:
    """The cases of all suites that fit the limits, in a fixed order."""
    cases: list[Case] = [*_deepbench_gemms(), *_transformer_gemms(), *_network_gemms(), *_deepbench_convs(),
                         *_network_convs()]  # fmt: skip
    return [c for c in cases if c.multiply_adds <= MAX_MULTIPLY_ADDS and c.largest <= MAX_ELEMENTS]


def draw_cases(count: int, seed: int = 0) -> list[Case]:
    """Distinct cases drawn by a seed, as many products as convolutions."""
    rng = np.random.default_rng(seed)
    drawn: list[Case] = []
    for kind, share in ((Gemm, (count + 1) // 2), (Conv, count // 2)):
        some = list(dict.fromkeys(c for c in all_cases() if isinstance(c, kind)))
        drawn += [some[k] for k in rng.permutation(len(some))[:share]]
    return drawn


def _read_sizes(file: str) -> list[list[int]]:
    with (FOLDER / file).open(newline="") as lines:
        return [[int(x) for x in row] for row in list(csv.reader(lines))[1:]]


def _deepbench_gemms() -> list[Gemm]:
    return [Gemm(m, n, k, 8448) for m, n, k in _read_sizes("deepbench_gemm.csv")]


def _deepbench_convs() -> list[Conv]:
    return [Conv(*row) for row in _read_sizes("deepbench_conv.csv")]


def _transformer_gemms() -> list[Gemm]:
    """Projections and feed-forward layers of BERT, BERT-large and GPT-2 at 17 lengths from 1 to 476."""
    lengths = [round(1 + 475 * k / 16) for k in range(17)]
    layers = [(768, 768), (2304, 768), (3072, 768), (768, 3072), (1024, 1024), (4096, 1024), (1024, 4096)]
    return [Gemm(m, n, k, 476) for n, k in layers for m in lengths]


def _network_gemms() -> list[Gemm]:
    """Last layers of AlexNet, GoogleNet and ResNet by batch."""
    batches = [1, *range(4, 65, 4)]
    layers = [(4096, 4096), (1000, 4096), (1000, 1024), (1000, 512), (1000, 2048), (10, 512)]
    return [Gemm(m, n, k, 128) for n, k in layers for m in batches]


def _network_convs() -> list[Conv]:
    """Layers of ResNet and GoogleNet by batch."""
    layers = [
        (64, 56, 64, 3, 1, 1), (64, 56, 64, 1, 0, 1), (64, 56, 256, 1, 0, 1), (128, 28, 128, 3, 1, 1),
        (256, 14, 256, 3, 1, 1), (512, 7, 512, 3, 1, 1), (256, 56, 64, 1, 0, 1), (512, 28, 128, 1, 0, 1),
        (192, 28, 96, 1, 0, 1), (96, 28, 128, 3, 1, 1), (16, 28, 32, 5, 2, 1), (480, 14, 192, 1, 0, 1),
        (128, 56, 128, 3, 1, 2), (3, 112, 64, 7, 3, 2),
    ]  # fmt: skip
    return [Conv(n, c, h, h, o, r, r, pad, pad, by, by) for c, h, o, r, pad, by in layers for n in (1, 4, 8)]
