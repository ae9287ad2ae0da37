"""`python -m tests.fuzz_construct`: a campaign of random operators, or one of its failing cases again."""

import sys
from pathlib import Path

from onnx import printer
from tests.fuzz.__main__ import Kind, main
from tests.fuzz.campaign import Worker
from tests.fuzz.case import Case
from tests.fuzz_construct.check import random_model

from tilewright.loops.printer import show
from tilewright.schedule.step import to_python


def describe(case: Case) -> None:
    """Prints the choices, the model, and what the driver's optimizer makes of its kernels."""
    model, way = random_model(case)
    print(case.kind, dict(case.record))
    print(printer.to_text(model.model))
    print(way)
    for kernel in way.compiled(model).kernels:
        print(show(kernel.origin))
        for program in kernel.programs:
            print(to_python(program.trace))


def worker() -> Worker:
    """A process that checks operators."""
    return Worker((sys.executable, "-m", "tests.fuzz_construct.worker"))


OPERATORS = Kind(
    "tests.fuzz_construct", Path("build/fuzz_construct"), describe, worker, ("operator", "constructed", "left to rule")
)

if __name__ == "__main__":
    sys.exit(main(OPERATORS))
