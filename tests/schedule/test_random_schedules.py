"""Random computations under random sequences of primitives: a small part of `make fuzz-schedules`, see tests/fuzz."""

from collections.abc import Iterator

import pytest
from tests.fuzz.campaign import Worker

SEED, COUNT = 2026, 40


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    process = Worker()
    yield process
    process.close()


@pytest.mark.parametrize("index", range(COUNT))
def test_accepted_schedules_preserve_semantics(worker: Worker, index: int) -> None:
    outcome = worker.ask({"seed": SEED, "index": index})
    again = f"python -m tests.fuzz --seed {SEED} --only {index}"
    assert outcome.failure is None, f"{': '.join(outcome.failure)}\n{again}"
