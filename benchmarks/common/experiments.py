"""Runs of experiments whose results are kept one by one, so that a run that was stopped goes on where it was."""

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from benchmarks.common import environment
from benchmarks.common.isolation import error_text
from benchmarks.common.result_store import CIRCUMSTANCES, ResultStore
from benchmarks.common.sources import source_hash
from tilewright.errors import TilewrightError

Experiment = tuple[str, Callable[[], dict[str, Any] | None]]
"""A name, and what measures it; None where it has no result, such as when time ran out."""


def is_of_these_sources(result: Mapping[str, Any]) -> bool:
    """Whether a result was measured with the code as it is."""
    return result.get("source") == source_hash()


def run_experiments(
    part: str,
    experiments: Iterable[Experiment],
    store: ResultStore,
    module: str,
    is_valid: Callable[[Mapping[str, Any]], bool] = is_of_these_sources,
    deadline: float = float("inf"),
) -> int:
    """Measures the experiments without a valid result; how many have none afterwards.

    Args:
        part: where the store keeps them.
        experiments: by name.
        store: of the results.
        module: that was run, for the circumstances.
        is_valid: whether a result that is there already counts.
        deadline: on the monotonic clock, after which none begins.
    """
    left = 0
    for name, measure in experiments:
        known = store.get(part, name)
        if known is not None and is_valid(known):
            continue
        try:
            result = measure() if time.monotonic() < deadline else None
        except (TilewrightError, ValueError) as error:
            # one experiment that fails must not take the others' results along
            print(f"{part} {name}: {error_text(error)}", file=sys.stderr)
            result = None
        if result is None:
            left += 1
            continue
        store.put(part, name, {**result, "source": source_hash()})
        store.put(CIRCUMSTANCES, part, environment.describe(f"python -m {module} {' '.join(sys.argv[1:])}".strip()))
        print(f"{part} {name}: done", file=sys.stderr, flush=True)
    return left
