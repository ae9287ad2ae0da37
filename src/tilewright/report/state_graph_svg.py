"""Drawing of a state graph as SVG: a band per memory level, states in order of the first visit."""

from html import escape

from tilewright.report.state_graph import Edge, State, StateGraph
from tilewright.tile.program import LEVELS

BOX, GAP, HEIGHT, ROW = 118, 142, 58, 128
LEFT, TOP, HEAD = 20, 64, 34
COLUMNS = 6
"""States per row of a band."""

BANDS = {"L2": "#e8f1f8", "L1": "#e9f5f2", "register": "#fdf3e3"}
CHOSEN_COLOUR, OTHER_COLOUR, TEXT_COLOUR = "#c8553d", "#8a8a8a", "#555555"


def draw(graph: StateGraph, title: str) -> str:
    """The picture as an SVG document.

    A box is a state: its tile sizes per level, the axes in the order of the heading. A thick frame marks recorded
    states, a filled one the best. Edges carry the action and its probability (in greedy growth its score) at the
    first time; those from the start to the best state are red and bold.
    """
    places, bands, height = _place_states(graph)
    width = 2 * LEFT + COLUMNS * (BOX + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="26" font-size="16">{escape(title)}</text>',
        f'<text x="{LEFT}" y="46">sizes of {escape(", ".join(graph.axes))} per level; thick frame: recorded, filled:'
        " best; red: the way to it</text>",
        _arrowheads(),
    ]
    for level, (y, tall) in bands.items():
        parts.append(f'<rect class="band" x="4" y="{y}" width="{width - 8}" height="{tall}" rx="6" '
                     f'fill="{BANDS[level]}"/>')  # fmt: skip
        parts.append(f'<text x="{width - LEFT}" y="{y + 20}" font-size="13" font-weight="bold" text-anchor="end">'
                     f"{level} tiles</text>")  # fmt: skip
    ordered = sorted(graph.edges, key=lambda e: e.chosen)
    parts += [_edge_svg(e, places) for e in ordered]
    parts += [_label_svg(e, places) for e in ordered]
    parts += [_state_svg(k, s, places[k]) for k, s in enumerate(graph.states)]
    return "\n".join([*parts, "</svg>", ""])


Place = tuple[int, int]


def _place_states(graph: StateGraph) -> tuple[list[Place], dict[str, tuple[int, int]], int]:
    """The upper left corners of the states, the bands (top, height), and the height of the picture."""
    places: dict[int, Place] = {}
    bands: dict[str, tuple[int, int]] = {}
    y = TOP
    for level in reversed(LEVELS):
        ids = [k for k, s in enumerate(graph.states) if s.level == level]
        if not ids:
            continue
        rows = -(-len(ids) // COLUMNS)
        for n, k in enumerate(ids):
            places[k] = (LEFT + n % COLUMNS * (BOX + GAP), y + HEAD + n // COLUMNS * ROW)
        bands[level] = (y, HEAD + rows * ROW)
        y += HEAD + rows * ROW + 12
    return [places[k] for k in range(len(graph.states))], bands, y


def _state_svg(number: int, state: State, place: Place) -> str:
    x, y = place
    fill = "#f6c8bd" if state.best else "white"
    frame = ("#333", 2.5) if state.recorded else ("#999", 1)
    lines = [f"{name}: {' '.join(map(str, sizes))}" for name, sizes in zip(LEVELS, state.sizes, strict=True)][::-1]
    texts = "".join(
        f'<text x="{x + 8}" y="{y + 17 + 15 * k}"{_font_weight(line, state)}>{escape(line)}</text>'
        for k, line in enumerate(lines)
    )
    kinds = "state" + " recorded" * state.recorded + " best" * state.best
    return (
        f'<g class="{kinds}"><title>state {number}</title><rect x="{x}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="5" '
        f'fill="{fill}" stroke="{frame[0]}" stroke-width="{frame[1]}"/>{texts}</g>'
    )


def _font_weight(line: str, state: State) -> str:
    return ' font-weight="bold"' if line.startswith(f"{state.level}:") else ""


def _edge_svg(edge: Edge, places: list[Place]) -> str:
    path, _ = _edge_curve(places[edge.source], places[edge.target])
    colour, width, mark = (CHOSEN_COLOUR, 3, "chosen") if edge.chosen else (OTHER_COLOUR, 1, "other")
    return (
        f'<path class="edge {mark}" d="{path}" fill="none" stroke="{colour}" stroke-width="{width}" '
        f'marker-end="url(#{mark})"/>'
    )


def _label_svg(edge: Edge, places: list[Place]) -> str:
    # probabilities in a walk, scores of any size in greedy growth
    label = f"{edge.weight:.2f}" if edge.weight <= 1 else f"{edge.weight:.3g}"
    label += f" x{edge.count}" if edge.count > 1 else ""
    _, (x, y) = _edge_curve(places[edge.source], places[edge.target])
    style = f'fill="{CHOSEN_COLOUR}" font-weight="bold"' if edge.chosen else f'fill="{TEXT_COLOUR}" font-size="10"'
    # a white rim keeps a label legible where lines cross it
    rim = 'stroke="white" stroke-width="3" stroke-opacity="0.8" paint-order="stroke"'
    return (
        f'<text class="label" x="{x}" y="{y}" text-anchor="middle" {style} {rim}><tspan x="{x}">{escape(edge.action)}'
        f'</tspan><tspan x="{x}" dy="12">{label}</tspan></text>'
    )


def _edge_curve(a: Place, b: Place) -> tuple[str, Place]:
    """The path of an edge from box to box, and the position of its label."""
    (x0, y0), (x1, y1) = a, b
    middle = HEIGHT // 2
    if y0 == y1 and x1 == x0 + BOX + GAP:
        return f"M{x0 + BOX} {y0 + middle}H{x1 - 8}", (x0 + BOX + GAP // 2 - 4, y0 + middle - 18)
    if y0 == y1:
        # over or under the row, the farther the higher
        out = x1 > x0
        edge, lift = (y0, -1) if out else (y0 + HEIGHT, 1)
        top = edge + lift * min(44, 14 + abs(x1 - x0) // 14)
        left, right = x0 + BOX // 2, x1 + BOX // 2
        label = (left + right) // 2, (edge + 3 * top) // 4 + (0 if out else -6)
        return f"M{left} {edge}C{left} {top} {right} {top} {right} {edge + 8 * lift}", label
    down = y1 > y0
    start, end = (y0 + HEIGHT, y1 - 8) if down else (y0, y1 + HEIGHT + 8)
    left, right = x0 + 3 * BOX // 4, x1 + BOX // 4
    half = (start + end) // 2
    label = left + (right - left) // 4, start + (end - start) // 4 + 2
    return f"M{left} {start}C{left} {half} {right} {half} {right} {end}", label


def _arrowheads() -> str:
    def head(name: str, colour: str, size: int) -> str:
        return (
            f'<marker id="{name}" viewBox="0 0 8 8" refX="2" refY="4" markerWidth="{size}" markerHeight="{size}" '
            f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
        )

    return f"<defs>{head('chosen', CHOSEN_COLOUR, 12)}{head('other', OTHER_COLOUR, 8)}</defs>"
