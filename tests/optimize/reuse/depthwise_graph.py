"""The graph that ETO's artifact solves for the depthwise convolutions of MobileNetV2: measured costs of its arcs."""

import csv
from pathlib import Path

from tilewright.optimize.reuse.greedy_flac import Arc

ROOT, TERMINALS = 1, tuple(range(2, 12))
"""The node of full searches, and those of the operators; the others are bridges."""

PATH = Path(__file__).with_name("depthwise_graph.csv")


def artifact_costs() -> dict[Arc, float]:
    """Measured programs per arc."""
    return {(int(r["from"]), int(r["to"])): float(r["trials"]) for r in _csv_rows()}


def artifact_loops() -> dict[Arc, tuple[str, str]]:
    """The loops of tail and head of every arc; the root's are `root`."""
    return {(int(r["from"]), int(r["to"])): (r["from_loops"], r["to_loops"]) for r in _csv_rows()}


def _csv_rows() -> list[dict[str, str]]:
    with PATH.open(newline="") as file:
        return list(csv.DictReader(file))
