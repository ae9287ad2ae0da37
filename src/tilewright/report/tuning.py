"""Report of a tuning: tables of the plan and of the result, JSON values, and an HTML page."""

from collections.abc import Sequence
from html import escape
from typing import Any

from tilewright.cost.roofline import touched_bytes
from tilewright.driver.tune.compare_model import ModelComparison
from tilewright.driver.tune.plan import PlannedKernel, TuningPlan
from tilewright.driver.tune.result import TuningResult
from tilewright.driver.tune.session import EndReason, TunedKernel
from tilewright.errors import pluralize
from tilewright.expr.nodes import const
from tilewright.report.profile import printable
from tilewright.report.reuse_tree import reuse_data, reuse_text
from tilewright.report.roofline import Point, roofline
from tilewright.report.tuning_curve import tuning_curve
from tilewright.version import __version__

FORMAT = 1
"""Version of the JSON format."""

MAX_DISTURBED = 0.2
"""The part of the trials from which on a busy machine is reported."""

PLAN_HEADER = ("kernel", "calls", "predicted us", "share", "sizes", "group")

HEADER = ("kernel", "calls", "before us", "after us", "speedup", "noise", "trials", "failed", "programs")


def plan_rows(plan: TuningPlan) -> list[tuple[str, ...]]:
    """A row of `PLAN_HEADER` per kernel."""
    total = sum(k.predicted_total for k in plan.kernels) or 1.0
    return [
        (printable(k.label), str(k.calls), "-" if k.predicted is None else f"{k.predicted / 1e3:.1f}",
         f"{k.predicted_total / total:.1%}", str(len(k.points)), k.group[:8])
        for k in plan.kernels
    ]  # fmt: skip


def plan_data(plan: TuningPlan) -> dict[str, Any]:
    """The plan as plain data."""
    sizes = [plan.sizes.named(s) for s in plan.sizes.shapes]
    return {
        "format": FORMAT,
        "version": __version__,
        "machine": plan.machine.name,
        "sizes": [{"sizes": s, "weight": w} for s, w in zip(sizes, plan.sizes.weights, strict=True) if s],
        "kernels": [
            {"task": k.task.hash, "name": k.name, "nodes": list(k.nodes), "calls": k.calls, "optimizer": k.optimizer,
             "predicted_us": None if k.predicted is None else round(k.predicted / 1e3, 4), "programs": len(k.programs),
             "operations": k.operations, "group": k.group,
             "points": [{"sizes": dict(p.sizes), "weight": p.weight} for p in k.points]}
            for k in plan.kernels
        ],
    }  # fmt: skip


def by_gain(result: TuningResult) -> list[TunedKernel]:
    """All kernels, those that the model gains most from first."""
    return sorted(result.session.kernels, key=lambda k: -k.kernel.calls * ((k.before or 0.0) - (k.after or 0.0)))


def rows(kernels: Sequence[TunedKernel]) -> list[tuple[str, ...]]:
    """A row of `HEADER` per kernel; names in full."""
    return [
        (printable(k.kernel.label), str(k.kernel.calls), _us(k.before), _us(k.after), f"{k.speedup:.3f}",
         "-" if k.timing is None else f"{k.timing.spread:.1%}", str(k.trials), str(k.failures), _outcome(k))
        for k in kernels
    ]  # fmt: skip


def measured(kernels: Sequence[TunedKernel]) -> list[TunedKernel]:
    """The kernels that the tuning has reached, or refused."""
    return [k for k in kernels if k.before is not None or k.refusal]


def _us(nanoseconds: float | None) -> str:
    return "-" if nanoseconds is None else f"{nanoseconds / 1e3:.2f}"


def _outcome(k: TunedKernel) -> str:
    if k.refusal:
        return printable(k.refusal)
    if k.before is None:
        return "not reached"
    if k.choice is None:
        return "constructed"
    return f"tuned ({len(k.choice.programs)})" if len(k.choice.programs) > 1 else "tuned"


def summary(result: TuningResult) -> list[str]:
    """The lines above the table."""
    r, session = result, result.session
    lines = [
        f"{printable(r.model) or 'model'}: {pluralize(len(session.improved), 'kernel')} of {len(session.kernels)} "
        f"faster after {pluralize(session.trials, 'trial')} in {r.seconds:.1f} s ({session.end})",
    ]
    if session.timeline:
        last = session.timeline[-1]
        lines.append(
            f"sum of the kernels: {last.untuned / 1e6:.4f} ms untuned, {last.tuned / 1e6:.4f} ms tuned"
            f" (speedup {last.speedup:.3f})"
        )
    if unreached := len(session.kernels) - len(measured(session.kernels)):
        lines.append(f"not reached, with predicted times: {pluralize(unreached, 'kernel')}; a larger budget goes on")
    if session.disturbed > MAX_DISTURBED * session.trials:
        lines.append(
            f"the machine was too busy for {session.disturbed} of {pluralize(session.trials, 'trial')}: programs timed"
            " then are never taken; tune while nothing else runs"
        )
    lines += [comparison_text(c) for c in r.comparison]
    if r.is_reverted:
        lines.append("the tuned model is slower as a whole: all kernels stay as they were")
    lines += [text for text in (r.note, r.advice or r.overrun) if text]
    if session.end is EndReason.INTERRUPTED:
        lines.append(kept_text(session.trials, r.records))
    how = f"--search {r.variant} --seed {r.seed}, machine {r.plan.machine.name}"
    lines.append(f"records: {printable(r.records)}; {how}")
    return lines


def kept_text(trials: int, records: str) -> str:
    """What an interrupted tuning leaves in its store, and how to go on."""
    if not trials:
        return "nothing new was measured; the same command goes on"
    return f"kept in the store {printable(records)}: {pluralize(trials, 'measured program')}; the same command goes on"


def comparison_text(c: ModelComparison) -> str:
    """A comparison in a line."""
    sizes = "".join(f", {printable(n)}={size}" for n, size in c.sizes.items())
    verdict = "faster" if c.is_faster else "slower" if c.is_slower else "no difference outside the noise"
    busy = f"; others took {c.others:.0%} of the processors" if c.others > 0.05 else ""
    return (
        f"whole model, in turns{sizes}: {c.untuned.median * 1e3:.4f} ms untuned, {c.tuned.median * 1e3:.4f} ms tuned "
        f"(speedup {c.speedup:.3f}, noise {c.noise:.1%}: {verdict}{busy})"
    )


def data(result: TuningResult) -> dict[str, Any]:
    """The result as plain data; times in microseconds."""
    r = result
    return {
        "format": FORMAT,
        "version": __version__,
        "model": r.model,
        "end": r.session.end.name.lower(),
        "trials": r.session.trials,
        "disturbed": r.session.disturbed,
        "seemed_to_win": r.session.challenges,
        "won": r.session.confirmed,
        "seconds": round(r.seconds, 3),
        "compile_seconds": round(r.compile_seconds, 3),
        "end_seconds": round(r.end_seconds, 3),
        "budget": {"seconds": r.budget.seconds, "trials": r.budget.trials, "speedup": r.budget.speedup},
        "search": r.variant,
        "seed": r.seed,
        "records": r.records,
        "machine": r.plan.machine.name,
        "predicted_speedup": round(r.predicted_speedup, 5),
        "comparison": [
            {"sizes": dict(c.sizes), "untuned_us": round(c.untuned.median * 1e6, 3),
             "tuned_us": round(c.tuned.median * 1e6, 3), "speedup": round(c.speedup, 5), "noise": round(c.noise, 5),
             "is_faster": c.is_faster, "is_slower": c.is_slower, "others": c.others}
            for c in r.comparison
        ],
        "reverted": r.is_reverted,
        "notes": [text for text in (r.note, r.advice) if text],
        "kernels": [_kernel_data(k) for k in r.session.kernels],
        "reuse": reuse_data(r),
        "timeline": [
            {"seconds": round(s.seconds, 3), "trials": s.trials, "kernel": s.label,
             "untuned_us": round(s.untuned / 1e3, 3), "tuned_us": round(s.tuned / 1e3, 3)}
            for s in r.session.timeline
        ],
    }  # fmt: skip


def _kernel_data(k: TunedKernel) -> dict[str, Any]:
    def us(nanoseconds: float | None) -> float | None:
        return None if nanoseconds is None else round(nanoseconds / 1e3, 4)

    return {
        "task": k.kernel.task.hash, "name": k.kernel.name, "nodes": list(k.kernel.nodes), "calls": k.kernel.calls,
        "before_us": us(k.before), "after_us": us(k.after), "speedup": round(k.speedup, 5),
        "noise": None if k.timing is None else round(k.timing.spread, 5), "trials": k.trials, "failures": k.failures,
        "refusal": k.refusal, "programs": 0 if k.choice is None else len(k.choice.programs),
        "worst_ratio": None if k.choice is None else round(k.choice.worst_ratio, 5),
    }  # fmt: skip


_STYLE = """
body { font: 14px/1.45 sans-serif; margin: 24px auto; max-width: 1180px; padding: 0 16px; color: #222; }
h1 { font-size: 20px; margin: 0 0 8px; } h2 { font-size: 16px; margin: 28px 0 8px; }
p { margin: 2px 0; } .note { color: #666; font-size: 13px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { padding: 3px 8px; text-align: right; border-bottom: 1px solid #eee; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere; }
tr.tuned td { background: #f0f7f2; } td:last-child { white-space: normal; }
svg { max-width: 100%; height: auto; } .roof { max-width: 760px; }
"""


def html(result: TuningResult) -> str:
    """The result as one HTML page without scripts or references; well-formed XML, too."""
    r, machine = result, result.plan.machine
    title = escape(f"Tuning of {printable(r.model) or 'a model'}")
    kernels = by_gain(r)
    points = [p for k in kernels for p in _points(k)]
    parts = [
        '<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" lang="en"><head><meta charset="utf-8"/>',
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>",
        *(f"<p>{escape(line)}</p>" for line in summary(r)),
        f'<p class="note">tilewright {escape(__version__)}</p>',
        "<h2>The model's time while it was tuned</h2>",
        tuning_curve([(s.seconds, s.tuned / s.untuned if s.untuned else 1.0) for s in r.session.timeline]),
        '<p class="note">Sum of the kernels\' times as a part of the untuned one, after every round.</p>',
        "<h2>Kernels, the largest gain first</h2>",
        _table_html(kernels),
        '<p class="note">noise: distance between the quartiles of the blocks of the measurement that decided.</p>',
        *([] if r.reuse is None else ["<h2>Reuse of programs</h2>", f"<pre>{escape(reuse_text(r))}</pre>"]),
        "<h2>Beside the machine's limits</h2>",
        f'<div class="roof">{roofline(machine, machine.cores, points)}</div>',
        '<p class="note">Two dots per tuned kernel, before and after; bytes are those of its operands, once each.</p>',
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _table_html(kernels: Sequence[TunedKernel]) -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in HEADER)
    body: list[str] = []
    for k, cells in zip(kernels, rows(kernels), strict=True):
        style = ' class="tuned"' if k.choice is not None else ""
        body.append(f"<tr{style}>" + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n" + "\n".join(body) + "\n</tbody></table>"


def _points(k: TunedKernel) -> list[Point]:
    """A kernel on the roofline: before, and after where it is faster."""
    operand_bytes = _operand_bytes(k.kernel)
    if not k.kernel.operations or not operand_bytes or not k.before or not k.after:
        return []
    intensity, name = k.kernel.operations / operand_bytes, printable(k.kernel.label)
    points = [Point(intensity, k.kernel.operations / k.before, f"{name}: {k.before / 1e3:.1f} us")]
    if k.choice is not None:
        points.append(Point(intensity, k.kernel.operations / k.after, f"{name}, tuned: {k.after / 1e3:.1f} us"))
    return points


def _operand_bytes(kernel: PlannedKernel) -> float:
    sizes = kernel.points[0].sizes
    values = {v: const(sizes[v.name]) for v in kernel.task.func.symbols}
    return sum(touched_bytes(kernel.task.func, values).values())
