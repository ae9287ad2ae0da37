"""Two pictures as SVG text: a cloud of points on logarithmic axes, and bars by class."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from pathlib import Path

from benchmarks.common.report import RESULTS

WIDTH, HEIGHT = 760, 520
LEFT, RIGHT, TOP, BOTTOM = 80, 180, 40, 60
COLOURS = ("#1b6ca8", "#c8553d", "#2a9d8f", "#e9a23b", "#6d597a", "#444444", "#8ab17d", "#b5838d")
BAR_HEIGHT = 20


def scatter(title: str, x_label: str, y_label: str, groups: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Points (x, y) > 0 by group on logarithmic axes of one scale, with the diagonal where both are equal."""
    values = [v for points in groups.values() for p in points for v in p]
    if not values or min(values) <= 0:
        raise ValueError("expected points with positive coordinates")
    low, high = floor(log10(min(values))), max(ceil(log10(max(values))), floor(log10(min(values))) + 1)

    def x(value: float) -> float:
        return LEFT + (log10(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (log10(value) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [_svg_head(title, WIDTH, HEIGHT)]
    for e in range(low, high + 1):
        place = 10.0**e
        parts.append(f'<path d="M{x(place):.1f} {TOP}V{HEIGHT - BOTTOM}M{LEFT} {y(place):.1f}H{WIDTH - RIGHT}" '
                     'stroke="#ddd"/>')  # fmt: skip
        parts.append(f'<text x="{x(place):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{place:g}</text>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(place) + 4:.1f}" text-anchor="end">{place:g}</text>')
    parts.append(f'<path d="M{x(10.0**low):.1f} {y(10.0**low):.1f}L{x(10.0**high):.1f} {y(10.0**high):.1f}" '
                 'stroke="#888" stroke-dasharray="4 4"/>')  # fmt: skip
    for k, (name, points) in enumerate(groups.items()):
        colour = COLOURS[k % len(COLOURS)]
        parts += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="2.5" fill="{colour}" fill-opacity="0.6"/>'
                  for a, b in points]  # fmt: skip
        parts.append(_legend(name, k, colour, WIDTH - RIGHT + 12))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 18}" text-anchor="middle">{escape(x_label)}</text>')
    parts.append(f'<text transform="translate(20 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
                 f"{escape(y_label)}</text>")  # fmt: skip
    return "\n".join([*parts, "</svg>", ""])


def bars(title: str, rows: Sequence[tuple[str, str, float]], line: float = 1.0) -> str:
    """A bar (label, class, value >= 0) per row, one colour per class, with a line where bars should end at least."""
    if not rows or min(v for _, _, v in rows) < 0:
        raise ValueError("expected rows with values of 0 or more")
    classes = list(dict.fromkeys(c for _, c, _ in rows))
    left, right = 300, 130
    height = TOP + BAR_HEIGHT * len(rows) + 30
    top = max(line, *(v for _, _, v in rows)) * 1.05
    scale = (WIDTH - left - right) / top
    parts = [_svg_head(title, WIDTH, height)]
    for k, (label, group, value) in enumerate(rows):
        y, colour = TOP + BAR_HEIGHT * k, COLOURS[classes.index(group) % len(COLOURS)]
        parts.append(f'<text x="{left - 6}" y="{y + 14}" text-anchor="end" font-size="11">{escape(label)}</text>')
        parts.append(
            f'<rect x="{left}" y="{y + 3}" width="{value * scale:.1f}" height="{BAR_HEIGHT - 6}" fill="{colour}"/>'
        )
        parts.append(f'<text x="{left + value * scale + 4:.1f}" y="{y + 14}" font-size="11">{value:.2f}</text>')
    parts += [_legend(c, k, COLOURS[k % len(COLOURS)], WIDTH - right + 30) for k, c in enumerate(classes)]
    at = left + line * scale
    parts.append(f'<path d="M{at:.1f} {TOP}V{height - 24}" stroke="black" stroke-dasharray="4 3"/>')
    parts.append(f'<text x="{at:.1f}" y="{height - 8}" text-anchor="middle" font-size="11">{line:g}</text>')
    return "\n".join([*parts, "</svg>", ""])


def save(name: str, picture: str, folder: Path = RESULTS) -> Path:
    """Writes a picture among the results."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.svg"
    path.write_text(picture)
    return path


def _svg_head(title: str, width: int, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="20" y="22" font-size="15">{escape(title)}</text>'
    )


def _legend(name: str, k: int, colour: str, x: float) -> str:
    return f'<text x="{x}" y="{TOP + 14 + 18 * k}" fill="{colour}">{escape(name)}</text>'
