"""Fits parameters of the cost model by small kernels (`parameter_kernels.py`).

Every kernel is measured several times. A parameter follows from each measurement by the formula of the model in which
it stands; the median counts. Where the measurements contradict each other, or give a value far from the default, other
things than this parameter have decided the time: then it is not determined, and its old value stays.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median, quantiles

import numpy as np

from tilewright.machine import Target
from tilewright.machine.cost_parameters import CALIBRATION, CostParameters, parameter_fields
from tilewright.machine.model import Machine
from tilewright.measure.native_functions import NativeFunctions
from tilewright.measure.parameter_kernels import (
    SIDE,
    STREAMS,
    TILE_TERMS,
    UNROLLED_TERMS,
    RegisterTile,
    panel_copy,
    register_tile,
    segment_read,
    tile_rows,
    turned_copy,
)
from tilewright.measure.timing import REPEATS, time_once

MAX_DEFAULT_RATIO = 4.0
"""Largest factor between a fitted value and the default: beyond it something else was measured."""

MAX_SPREAD = 0.5
"""Largest distance between the quartiles of a parameter's estimates, relative to their median."""

PAGE, PITCH, NEAR_PITCH = 1024, 1040, 16
"""Float32 elements of a page, of rows that are a page apart but alias to no sets of L1, and of rows of one line."""

SHORT_SEGMENT = 128
"""Float32 elements of a page that are read where the rest is skipped."""

STREAM_SEGMENT = 32
"""The same of short streams."""

PANELS, PANEL_ROWS = 2, PITCH
"""Size of the packed matrix: it and its copy stay in L2, and rows are a page apart where they are not contiguous."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What the measurements say of one parameter.

    Attributes:
        name: of the parameter.
        value: the fitted one; None where it is not determined.
        before: the value before.
        why: why it is not determined; "" where it is.
    """

    name: str
    value: float | None
    before: float
    why: str = ""

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.name}: {self.before:g} stays, {self.why}"
        return f"{self.name}: {self.before:g} -> {self.value:.3g}"


def fitted_names() -> tuple[str, ...]:
    """The parameters that calibration fits, in the order of their fields."""
    return tuple(f.name for f in parameter_fields() if f.fixed_by == CALIBRATION)


def fit_parameters(machine: Machine, target: Target, report: Callable[[str], None]) -> Machine:
    """The machine with those parameters fitted that measurements determine.

    Args:
        machine: with measured clock, bandwidths and latencies.
        target: this machine's target.
        report: called with what was found for each parameter.
    """
    measured = _Kernels(target, machine).estimates(machine)
    fits = [fit(name, measured[name], machine.cost) for name in fitted_names()]
    for x in fits:
        report(str(x))
    values = {x.name: float(f"{x.value:.3g}") for x in fits if x.value is not None}
    return replace(machine, cost=replace(machine.cost, **values))


def fit(name: str, estimates: Sequence[float], cost: CostParameters) -> Fit:
    """A parameter from its estimates."""
    field = next(f for f in parameter_fields() if f.name == name)
    before, value = float(getattr(cost, name)), median(estimates)
    low, _, high = quantiles(estimates, n=4, method="inclusive")
    if high - low > MAX_SPREAD * abs(value):
        return Fit(name, None, before, f"estimates spread from {low:.3g} to {high:.3g}")
    least, most = (
        max(field.least, field.default / MAX_DEFAULT_RATIO),
        min(field.most, field.default * MAX_DEFAULT_RATIO),
    )
    if not least <= value <= most:
        return Fit(name, None, before, f"the estimate {value:.3g} is not between {least:.3g} and {most:.3g}")
    return Fit(name, value, before)


def load_fma_contention(ns_per_step: float, rows: int, machine: Machine) -> float:
    """Cycles per load, from the time of a step of `register_tile`, whose multiply-adds saturate their pipes."""
    multiply_adds, loads = 2.0 * rows * UNROLLED_TERMS, (rows + 2.0) * UNROLLED_TERMS
    return (ns_per_step * machine.ghz - multiply_adds / machine.fma_pipes - machine.cost.step_cycles) / loads


def page_ramp_bytes(short: float, whole: float) -> float:
    """Bytes, from the times per byte of reading a segment of every page, and whole pages (`hw_prefetch.page_ramp`):
    short / whole = (1 + ramp / segment) / (1 + ramp / page)."""
    ratio = short / whole
    return (ratio - 1.0) / max(1.0 / (4 * SHORT_SEGMENT) - ratio / (4 * PAGE), 1e-9)


def stream_ramp_bytes(short: float, whole: float, power: int = 4) -> float:
    """Bytes, from the times per byte of short streams and of long ones, which need no ramp-up
    (`hw_prefetch._ramp_slowdown`)."""
    return 4.0 * STREAM_SEGMENT * max((short / whole) ** power - 1.0, 0.0) ** (1.0 / power)


def packing_cycles(ns_per_element: float, machine: Machine) -> float:
    """Cycles per element, from the time of packing within L2, without moving it there and back
    (`cost.packing`)."""
    return (ns_per_element - 2.0 * 4.0 / machine.levels[1].gbs(1)) * machine.ghz


class _Kernels:
    """The compiled kernels and their measurements."""

    def __init__(self, target: Target, machine: Machine) -> None:
        self.target, self.rng = target, np.random.default_rng(0)
        self.native = NativeFunctions(
            [
                register_tile(target, RegisterTile(tile_rows(target))),
                segment_read("near_rows", target, NEAR_PITCH, NEAR_PITCH),
                segment_read("far_rows", target, NEAR_PITCH, PITCH),
                segment_read("whole_pages", target, PAGE, PAGE),
                segment_read("short_pages", target, SHORT_SEGMENT, PAGE),
                segment_read("short_streams", target, STREAM_SEGMENT, PAGE),
                turned_copy("inserting", target, True),
                turned_copy("scattering", target, False),
                panel_copy("packing", target, PANELS, PANEL_ROWS, True),
                panel_copy("transposing", target, PANELS, PANEL_ROWS, False),
            ],
            target,
        )
        # four times as many pages as the first TLB holds, and segments that fill several times the private caches
        self._near_blocks = max(1, 4 * machine.tlb_entries // STREAMS)
        private = max((x.bytes for x in machine.private_caches), default=machine.levels[0].bytes)
        self._far_blocks = max(1, 4 * private // (4 * SHORT_SEGMENT) // STREAMS)

    def estimates(self, machine: Machine) -> Mapping[str, Sequence[float]]:
        """Several estimates of every parameter."""
        found: dict[str, list[float]] = {name: [] for name in fitted_names()}
        far = self._random_floats((self._far_blocks, STREAMS, PAGE))
        for _ in range(REPEATS):
            for name, value in self._estimates_once(machine, far).items():
                found[name].append(value)
        return found

    def _estimates_once(self, machine: Machine, far: np.ndarray) -> dict[str, float]:
        near_ns, far_ns = (
            self._read_ns(name, self._random_floats((self._near_blocks, STREAMS, pitch)))
            for name, pitch in (("near_rows", NEAR_PITCH), ("far_rows", PITCH))
        )
        short, streams = self._read_ns("short_pages", far) / SHORT_SEGMENT, self._read_ns("short_streams", far)
        whole = self._read_ns("whole_pages", far) / PAGE
        return {
            "load_fma_contention": load_fma_contention(self._tile_ns(), tile_rows(self.target), machine),
            "tlb_miss_cycles": (far_ns - near_ns) * machine.ghz,
            "page_ramp_bytes": page_ramp_bytes(short, whole),
            "stream_ramp_bytes": stream_ramp_bytes(streams / STREAM_SEGMENT, whole),
            "insert_cycles": self._copy_ns("inserting", (SIDE, SIDE), (SIDE, SIDE)) * machine.ghz,
            "scatter_cycles": self._copy_ns("scattering", (SIDE, SIDE), (SIDE, SIDE)) * machine.ghz,
            "copy_cycles": packing_cycles(self._packing_ns("packing", True), machine),
            "transpose_cycles": packing_cycles(self._packing_ns("transposing", False), machine),
        }

    def _random_floats(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.resize(self.rng.random(4096, dtype=np.float32), shape)

    def _repetition_seconds(self, name: str, arrays: list[np.ndarray], sizes: list[int]) -> float:
        return time_once(lambda times: self.native.call(name, arrays, [*sizes, times]))

    def _tile_ns(self) -> float:
        """Nanoseconds of one step."""
        rows, lanes = tile_rows(self.target), self.target.lanes(32)
        arrays = [self._random_floats((TILE_TERMS, rows)), self._random_floats((TILE_TERMS, 2 * lanes))]
        seconds = self._repetition_seconds("register_tile", [*arrays, np.zeros((rows, 2 * lanes), np.float32)], [])
        return seconds * 1e9 / (TILE_TERMS / UNROLLED_TERMS)

    def _read_ns(self, name: str, data: np.ndarray) -> float:
        """Nanoseconds of one row."""
        out = np.zeros((STREAMS, self.target.lanes(32)), np.float32)
        return self._repetition_seconds(name, [data, out], [len(data)]) * 1e9 / (len(data) * STREAMS)

    def _copy_ns(self, name: str, source: tuple[int, ...], copy: tuple[int, ...]) -> float:
        """Nanoseconds of one element."""
        return (
            self._repetition_seconds(name, [self._random_floats(source), np.zeros(copy, np.float32)], [])
            * 1e9
            / prod(copy)
        )

    def _packing_ns(self, name: str, contiguous: bool) -> float:
        width = 2 * self.target.lanes(32)
        source = (PANEL_ROWS, PANELS, width) if contiguous else (PANELS, width, PANEL_ROWS)
        return self._copy_ns(name, source, (PANELS, PANEL_ROWS, width))
