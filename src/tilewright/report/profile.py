"""Report of a profile: a table, JSON values, and an HTML page."""

from collections.abc import Sequence
from html import escape
from typing import Any

from tilewright.driver.diagnostics.profile import Entry, Profile
from tilewright.errors import pluralize
from tilewright.report.profile_timeline import colour, legend, timeline
from tilewright.report.roofline import Point, roofline
from tilewright.version import __version__

FORMAT = 1
"""Version of the JSON format."""

MAX_NAME_LENGTH = 56
"""Limit of the characters of a cell with node names."""

HEADER = ("nodes", "us", "share", "GFLOP/s", "limit us", "reached", "by", "start us", "wait us")


def printable(text: str) -> str:
    """A name from a model with unprintable characters replaced, safe for terminals and pages."""
    return "".join(c if c.isprintable() else "?" for c in text)


def slowest(profile: Profile) -> list[Entry]:
    """All entries, the longest first."""
    return sorted(profile.entries, key=lambda e: -e.us)


def rows(entries: Sequence[Entry]) -> list[tuple[str, ...]]:
    """A row of `HEADER` per entry; names in full."""
    return [
        (printable(e.nodes or e.name) + (" on the reference evaluator" if e.kind == "fallback" else ""), f"{e.us:.1f}",
         f"{e.share:.1%}", _rate_cell(e), *_limit_cells(e), *((f"{e.start:.1f}",
         f"{e.wait:.1f}") if e.threads else ("-", "-")))
        for e in entries
    ]  # fmt: skip


def shortened(row: tuple[str, ...]) -> tuple[str, ...]:
    """A row whose names fit a terminal."""
    name = row[0] if len(row[0]) <= MAX_NAME_LENGTH else f"{row[0][: MAX_NAME_LENGTH - 3]}..."
    return (name, *row[1:])


def _rate_cell(e: Entry) -> str:
    return f"{e.flops / e.us / 1e3:.1f}" if e.flops and e.us > 0 else "-"


def _limit_cells(e: Entry) -> tuple[str, str, str]:
    if e.limit is None:
        return "-", "-", "-"
    reached = f"{e.limit.us / e.us:.0%}" if e.us > 0 else "-"
    return f"{e.limit.us:.1f}", reached, e.limit.by


def summary(profile: Profile) -> list[str]:
    """The lines above the table."""
    p, m = profile, profile.machine
    sizes = "".join(f", {printable(n)}={v}" for n, v in p.sizes.items())
    kernels = sum(e.kind == "kernel" for e in p.entries)
    limits = sum(e.limit.us for e in p.entries if e.limit is not None)
    share = p.outside_us / p.call_us if p.call_us > 0 else 0.0
    lines = [
        f"{printable(p.model) or 'model'}: {p.call_us:.1f} us a call, {pluralize(p.threads, 'thread')}{sizes}",
        f"mean over the fastest quarter of {pluralize(p.calls, 'call')}, whose median is {p.median_us:.1f} us",
        f"{pluralize(kernels, 'kernel')}, {pluralize(len(p.entries) - kernels, 'other step')}: {p.sum_us:.1f} us;"
        f" outside of them {p.outside_us:.1f} us ({share:.1%})",
        f"limits: {limits:.1f} us in all, by {m.gflops(p.threads):.4g} GFLOP/s in float32 and"
        f" {', '.join(f'{x.name} {x.gbs(p.threads):.4g} GB/s' for x in m.levels[1:])} (machine {m.name}, {p.origin})",
    ]
    if p.is_walked:
        lines.append("the runtime walked the steps here; a call without a profile is one native call with less outside")
    if p.overhead is not None:
        lines.append(f"the clock readings cost {p.overhead:+.2%} of a call")
    return lines


def data(profile: Profile) -> dict[str, Any]:
    """The profile as plain data; times in microseconds."""
    p = profile
    return {
        "format": FORMAT,
        "version": __version__,
        "model": p.model,
        "inputs": {name: list(shape) for name, shape in p.inputs.items()},
        "sizes": dict(p.sizes),
        "threads": p.threads,
        "calls": p.calls,
        "call_us": _round(p.call_us),
        "median_us": _round(p.median_us),
        "sum_us": _round(p.sum_us),
        "outside_us": _round(p.outside_us),
        "overhead": p.overhead,
        "is_walked": p.is_walked,
        "machine": {"name": p.machine.name, "origin": p.origin, "gflops": p.machine.gflops(p.threads),
                    "levels": {x.name: x.gbs(p.threads) for x in p.machine.levels}},
        "entries": [_entry_data(e) for e in p.entries],
    }  # fmt: skip


def _entry_data(e: Entry) -> dict[str, Any]:
    limit = None
    if e.limit is not None:
        memory = {name: _round(us) for name, us in e.limit.memory_us}
        limit = {"us": _round(e.limit.us), "by": e.limit.by, "compute_us": _round(e.limit.compute_us),
                 "memory_us": memory, "bytes": e.limit.bytes}  # fmt: skip
    times = [(t.start, t.busy, t.wait, t.first, t.last) for t in e.threads]
    names = ("start_us", "busy_us", "wait_us", "first_us", "last_us")
    threads = [dict(zip(names, map(_round, values), strict=True)) for values in times]
    return {"name": e.name, "kind": e.kind, "nodes": e.nodes, "step": e.step, "begin_us": _round(e.begin),
            "us": _round(e.us), "share": round(e.share, 6), "regions": e.regions, "flops": e.flops, "limit": limit,
            "threads": threads}  # fmt: skip


def _round(us: float) -> float:
    """To nanoseconds."""
    return round(us, 3)


_STYLE = """
body { font: 14px/1.45 sans-serif; margin: 24px auto; max-width: 1180px; padding: 0 16px; color: #222; }
h1 { font-size: 20px; margin: 0 0 8px; } h2 { font-size: 16px; margin: 28px 0 8px; }
p { margin: 2px 0; } .note { color: #666; font-size: 13px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { padding: 3px 8px; text-align: right; border-bottom: 1px solid #eee; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere; }
td.bar { width: 180px; padding: 3px 0; } .track { position: relative; height: 12px; background: #f4f4f4; }
.time, .least { position: absolute; left: 0; top: 0; height: 12px; } .least { border-right: 2px solid #222; }
small { color: #777; } svg { max-width: 100%; height: auto; } .roof { max-width: 760px; }
"""


def html(profile: Profile) -> str:
    """The profile as one HTML page without scripts or references; well-formed XML, too."""
    p = profile
    points = [Point(e.flops / e.limit.bytes, e.flops / e.us / 1e3, f"{printable(e.nodes or e.name)}: {e.us:.1f} us")
              for e in p.entries if e.flops and e.limit and e.limit.bytes > 0 and e.us > 0]  # fmt: skip
    title = escape(f"{printable(p.model) or 'model'}: where {p.call_us / 1e3:.3f} ms go")
    parts = [
        '<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" lang="en"><head><meta charset="utf-8"/>',
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>",
        *(f"<p>{escape(line)}</p>" for line in summary(p)),
        f'<p class="note">{escape(_inputs(p))} tilewright {escape(__version__)}</p>',
        "<h2>One call</h2>", timeline(p), legend(p),
        "<h2>Kernels, the longest first</h2>", _table_html(p),
        '<p class="note">A bar is the time; the black mark is what the machine needs at least. start: until the last'
        " thread began; wait: of the thread that waited longest at the join.</p>",
        "<h2>Beside the machine's limits</h2>", f'<div class="roof">{roofline(p.machine, p.threads, points)}</div>',
        '<p class="note">A dot is a kernel; bytes are those of its operands, once each.</p>',
        "</body></html>\n",
    ]  # fmt: skip
    return "\n".join(parts)


def _inputs(profile: Profile) -> str:
    return "".join(f"{printable(n)}: {list(shape)}; " for n, shape in profile.inputs.items())


def _table_html(profile: Profile) -> str:
    entries = slowest(profile)
    longest = max([e.us for e in entries] + [max((e.limit.us for e in entries if e.limit), default=0.0), 1e-9])
    head = "".join(f"<th>{escape(h)}</th>" for h in (HEADER[0], "", *HEADER[1:]))
    body: list[str] = []
    for e, cells in zip(entries, rows(entries), strict=True):
        named = f"{escape(cells[0])} <small>{escape(printable(e.name))}</small>"
        body.append(f'<tr class="{e.kind}"><td>{named}</td><td class="bar">{_bar_html(e, longest)}</td>'
                    + "".join(f"<td>{escape(c)}</td>" for c in cells[1:]) + "</tr>")  # fmt: skip
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n" + "\n".join(body) + "\n</tbody></table>"


def _bar_html(e: Entry, longest: float) -> str:
    least = "" if e.limit is None else f'<div class="least" style="width:{100 * e.limit.us / longest:.2f}%"></div>'
    return (
        f'<div class="track"><div class="time" style="width:{100 * e.us / longest:.2f}%;background:{colour(e)}"></div>'
        f"{least}</div>"
    )
