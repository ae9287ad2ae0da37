"""Timeline of a call as SVG: kernels on the calling thread, and a lane per thread below."""

from html import escape

from tilewright.driver.diagnostics.profile import Entry, Profile

WIDTH, LANE_HEIGHT, GAP = 1140, 26, 6
LEFT, TOP = 70, 24

COMPUTE, NEAREST_CACHE, OUTER_CACHE, MAIN_MEMORY, OTHER = "#1b6ca8", "#2a9d8f", "#e9a23b", "#c8553d", "#8a8a8a"
BUSY, WAITING = "#1b6ca8", "#f0c9c0"


def colour(entry: Entry) -> str:
    """The colour of the limiting resource: operations, nearest cache, outer caches, main memory; grey for others."""
    if entry.limit is None or entry.kind != "kernel":
        return OTHER
    if entry.limit.by == "compute":
        return COMPUTE
    names = [name for name, _ in entry.limit.memory_us]
    if entry.limit.by == names[-1]:
        return MAIN_MEMORY
    return NEAREST_CACHE if entry.limit.by == names[0] else OUTER_CACHE


def legend(profile: Profile) -> str:
    """The legend of the colours as a paragraph of HTML."""
    levels = [x.name for x in profile.machine.levels[1:]]
    meanings = {COMPUTE: "limited by operations", NEAREST_CACHE: f"by {levels[0]}" if len(levels) > 1 else "",
                OUTER_CACHE: f"by {', '.join(levels[1:-1])}" if len(levels) > 2 else "",
                MAIN_MEMORY: f"by {levels[-1]}",
                OTHER: "copies and fallback steps",
                WAITING: "threads: before their first and after their last work"}  # fmt: skip
    shown = "".join(f'<span style="color:{c}">&#9632;</span> {escape(m)} &#160; ' for c, m in meanings.items() if m)
    return f'<p class="note">{shown}</p>'


def timeline(profile: Profile) -> str:
    """The SVG of a call from left to right: a lane of kernels, then a lane per thread."""
    lanes = max((len(e.threads) for e in profile.entries), default=0)
    height = TOP + (1 + lanes) * (LANE_HEIGHT + GAP) + 24
    scale = (WIDTH - LEFT - 10) / max(profile.call_us, 1e-9)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="white"/>'
    ]
    for k, name in enumerate(("call", *(f"thread {n}" for n in range(lanes)))):
        y = TOP + k * (LANE_HEIGHT + GAP)
        parts.append(f'<text x="{LEFT - 8}" y="{y + 17}" text-anchor="end">{name}</text>')
        parts.append(
            f'<rect x="{LEFT}" y="{y}" width="{profile.call_us * scale:.1f}" height="{LANE_HEIGHT}" fill="#f4f4f4"/>'
        )
    for e in profile.entries:
        parts.append(_box(LEFT + e.begin * scale, TOP, e.us * scale, colour(e), _tooltip(e)))
        for n, t in enumerate(e.threads):
            y = TOP + (1 + n) * (LANE_HEIGHT + GAP)
            hint = f"{_tooltip(e)}; thread {n}: start {t.start:.1f}, busy {t.busy:.1f}, wait {t.wait:.1f} us"
            parts.append(_box(LEFT + e.begin * scale, y, e.us * scale, WAITING, hint))
            parts.append(_box(LEFT + t.first * scale, y, (t.last - t.first) * scale, BUSY, hint))
    base = TOP + (1 + lanes) * (LANE_HEIGHT + GAP) + 12
    for k in range(5):
        at = profile.call_us * k / 4
        anchor = "end" if k == 4 else "start" if k == 0 else "middle"
        parts.append(f'<text x="{LEFT + at * scale:.1f}" y="{base}" text-anchor="{anchor}">{at:.1f} us</text>')
    return "\n".join([*parts, "</svg>"])


def _tooltip(entry: Entry) -> str:
    return "".join(
        c if c.isprintable() else "?" for c in f"{entry.nodes or entry.name}: {entry.us:.1f} us ({entry.share:.1%})"
    )


def _box(x: float, y: float, width: float, fill: str, hint: str) -> str:
    # a white edge separates neighbours where there is room for it
    edge = ' stroke="white" stroke-width="0.5"' if width > 3 else ""
    return (
        f'<rect x="{x:.2f}" y="{y:.1f}" width="{max(width, 0.1):.2f}" height="{LANE_HEIGHT}" fill="{fill}"{edge}>'
        f"<title>{escape(hint)}</title></rect>"
    )
