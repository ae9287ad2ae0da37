"""The table of the zoo's times: one row per shape, and the geometric means over all of them."""

from collections.abc import Mapping, Sequence

from benchmarks.common.isolation import Event
from benchmarks.common.statistics import geometric_mean

HEADER = ["model", "shape", "tilewright ms", "onnxruntime ms", "ratio", "of beside", "others", "compile s", "load ms",
          "artifact MiB", "notes"]  # fmt: skip


def geometric_means(models: Mapping[str, Sequence[Event]]) -> str:
    """Say the geometric mean of all shapes' ratios, and that of the ratios to another optimizer where one took part."""
    timed = [event for events in models.values() for event in events if "ours_ms" in event]
    ratios_by_column = {
        "ratio": [event["ours_ms"] / event["theirs_ms"] for event in timed],
        "of beside": [event["ours_ms"] / event["beside_ms"] for event in timed if "beside_ms" in event],
    }
    means = [f"{name} {geometric_mean(ratios):.2f}" for name, ratios in ratios_by_column.items() if ratios]
    return f"Geometric means: {', '.join(means)}." if means else ""


def rows(model: str, events: Sequence[Event]) -> tuple[list[list[str]], bool]:
    """Return one table row per shape and whether everything ran; the model's first row carries its once-only costs."""
    once = {key: value for event in events for key, value in event.items() if "shape" not in event}
    costs = [_number(once.get("compile_s"), 1.0, 1), _number(once.get("load_s"), 1e3, 0),
             _number(once.get("artifact_bytes"), 2.0**-20, 1)]  # fmt: skip
    notes = [f"artifact: {once['artifact_error']}"] if "artifact_error" in once else []
    notes += ["artifact computes other bits"] if once.get("same_bits") is False else []
    notes += [f"{once['evaluated']} steps on the reference evaluator"] if once.get("evaluated") else []
    notes += [str(text) for text in once.get("warnings", [])]
    table: list[list[str]] = []
    passed = "artifact_error" not in once and once.get("same_bits", True)
    current = ""
    for event in events:
        current = event.get("starting", current)
        if "error" in event:
            table.append([model, event.get("shape", current), *[""] * 5, *costs, f"error: {event['error']}"])
            passed = False
        elif "ours_ms" in event:
            ours, theirs, beside = event["ours_ms"], event["theirs_ms"], event.get("beside_ms")
            table.append(
                [model, event["shape"], f"{ours:.2f}", f"{theirs:.2f}", f"{ours / theirs:.2f}",
                 "-" if beside is None else f"{ours / beside:.2f}", f"{event['others']:.0%}", *costs, "; ".join(notes)]
            )  # fmt: skip
        else:
            continue
        costs, notes = ["", "", ""], []
    return table, bool(passed and table)


def _number(value: float | None, scale: float, digits: int) -> str:
    return "-" if value is None else f"{value * scale:.{digits}f}"
