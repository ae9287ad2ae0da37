"""`python -m tests.fuzz_models`: a campaign of random models, or one of its failing cases again.

FUZZ_OPSETS=1-22 draws other versions of the operator set than 7 to 22.
"""

import os
import sys
from pathlib import Path

from onnx import printer
from tests.fuzz.__main__ import Kind, main
from tests.fuzz.campaign import Worker
from tests.fuzz.case import Case
from tests.fuzz_models.check import made_of


def describe(case: Case) -> None:
    """Prints the choices and the model."""
    builder, model, optimizer = made_of(case)
    print(dict(case.record))
    print(printer.to_text(model))
    print(f"optimizer {optimizer}, kinds {', '.join(builder.kinds)}")


def worker() -> Worker:
    """A process that checks models."""
    opsets = os.environ.get("FUZZ_OPSETS", "").split("-")
    return Worker((sys.executable, "-m", "tests.fuzz_models.worker", *(opsets if len(opsets) == 2 else ())))


MODELS = Kind(
    "tests.fuzz_models", Path("build/fuzz_models"), describe, worker, ("kind of node", "drawn", "on fallback")
)

if __name__ == "__main__":
    sys.exit(main(MODELS))
