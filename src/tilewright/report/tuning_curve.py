"""Curve of a tuning as SVG: the model's time, as a part of the untuned one, over the seconds of the tuning."""

from collections.abc import Sequence

WIDTH, HEIGHT = 1140, 260
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 16, 36


def tuning_curve(points: Sequence[tuple[float, float]]) -> str:
    """The SVG of a curve.

    Args:
        points: seconds, and the time of the model as a part of the untuned one, in the order of the seconds.
    """
    end = max([s for s, _ in points] + [1e-9])
    low = min([part for _, part in points] + [0.99])
    high = max([part for _, part in points] + [1.0])

    def x(seconds: float) -> float:
        return LEFT + seconds / end * (WIDTH - LEFT - RIGHT)

    def y(part: float) -> float:
        return TOP + (high - part) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="white"/>'
    ]
    for k in range(5):
        part, at = low + (high - low) * k / 4, end * k / 4
        anchor = "end" if k == 4 else "start" if k == 0 else "middle"
        parts.append(f'<path d="M{LEFT} {y(part):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(part) + 4:.1f}" text-anchor="end">{part:.1%}</text>')
        parts.append(f'<text x="{x(at):.1f}" y="{HEIGHT - 14}" text-anchor="{anchor}">{at:.1f} s</text>')
    # the time holds until the round that changes it has ended
    steps, last = [f"{x(0):.1f},{y(1.0):.1f}"], 1.0
    for seconds, part in points:
        steps += [f"{x(seconds):.1f},{y(last):.1f}", f"{x(seconds):.1f},{y(part):.1f}"]
        last = part
    parts.append(f'<polyline points="{" ".join(steps)}" fill="none" stroke="#1b6ca8" stroke-width="2"/>')
    return "\n".join([*parts, "</svg>"])
