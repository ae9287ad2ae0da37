"""Roofline plot of a machine: attainable GFLOP/s over operational intensity, one slope per memory level."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import log10

from tilewright.machine.model import Machine

WIDTH, HEIGHT = 760, 480
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 40, 60
COLOURS = ("#1b6ca8", "#2a9d8f", "#e9a23b", "#c8553d", "#6d597a", "#444444")


@dataclass(frozen=True, slots=True)
class Point:
    """A measured point: operations per byte, GFLOP/s, and a name."""

    intensity: float
    gflops: float
    name: str


def roofline(machine: Machine, cores: int, points: Sequence[Point] = ()) -> str:
    """A log-log roofline plot.

    Args:
        machine: the machine.
        cores: the number of busy cores.
        points: points to draw; those beyond the axes are moved to their ends.

    Returns:
        An SVG document. Horizontal: floating-point operations per byte; vertical: GFLOP/s.
    """
    peak = machine.gflops(cores)
    rates = [level.gbs(cores) for level in machine.levels]
    low, high = _decade(peak / max(rates)) - 1, _decade(peak / min(rates)) + 2
    bottom, top = _decade(min(rates) * 10.0**low), _decade(peak) + 1
    axes = _Axes(low, high, bottom, top)
    parts = [_frame(machine, cores, peak), *axes.grid()]
    for k, (level, rate) in enumerate(zip(machine.levels, rates, strict=True)):
        ridge = peak / rate
        start = max(10.0**low, 10.0**bottom / rate)
        colour = COLOURS[k % len(COLOURS)]
        corners = ((start, start * rate), (ridge, peak), (10.0**high, peak))
        path = " ".join(f"{axes.x(a):.1f},{axes.y(b):.1f}" for a, b in corners)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        text = f"{level.name}: {rate:.3g} GB/s"
        y = TOP + 20 + 18 * k
        parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{y}" fill="{colour}">{escape(text)}</text>')
    parts.append(f'<text x="{axes.x(10.0**high) - 4:.1f}" y="{axes.y(peak) - 6:.1f}" text-anchor="end">'
                 f"{peak:.4g} GFLOP/s</text>")  # fmt: skip
    for p in points:
        x = axes.x(min(max(p.intensity, 10.0**low), 10.0**high))
        y = axes.y(min(max(p.gflops, 10.0**bottom), 10.0**top))
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#222" fill-opacity="0.45"><title>{escape(p.name)}'
                     "</title></circle>")  # fmt: skip
    return "\n".join([*parts, "</svg>", ""])


def _decade(x: float) -> int:
    exponent = log10(x)
    return int(exponent) - (exponent < 0)


class _Axes:
    """Maps values on logarithmic axes to positions in the picture."""

    def __init__(self, low: int, high: int, bottom: int, top: int) -> None:
        self.low, self.high, self.bottom, self.top = low, high, bottom, top

    def x(self, value: float) -> float:
        """The horizontal position of an operational intensity."""
        return LEFT + (log10(value) - self.low) / (self.high - self.low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """The vertical position of a rate in GFLOP/s."""
        part = (log10(value) - self.bottom) / (self.top - self.bottom)
        return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)

    def grid(self) -> list[str]:
        """A line and a number per decade."""
        lines: list[str] = []
        for e in range(self.low, self.high + 1):
            x = self.x(10.0**e)
            lines.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>')
            lines.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{10.0**e:g}</text>')
        for e in range(self.bottom, self.top + 1):
            y = self.y(10.0**e)
            lines.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
            lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**e:g}</text>')
        return lines


def _frame(machine: Machine, cores: int, peak: float) -> str:
    title = f"{machine.name}, {cores} core{'s' if cores > 1 else ''}: peak {peak:.4g} GFLOP/s in float32"
    middle = (LEFT + WIDTH - RIGHT) / 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>\n'
        f'<text x="{middle}" y="{HEIGHT - 18}" text-anchor="middle">operations per byte</text>\n'
        f'<text transform="translate(18 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">GFLOP/s</text>'
    )
