"""Random operators, constructed by `gensor` and `roller`: whatever they make must compute what the operator means.

`python -m tests.fuzz_construct --help` runs campaigns (`make fuzz-construct` one of 2,000 operators); workers,
shrinking and resuming are those of `tests.fuzz`. Read in this order: `builder.py` makes one-operator ONNX models from
recorded choices, `operators.py` has a function per kind of operator, `check.py` decides whether what was constructed is
right, `worker.py` does so in a process of its own.
"""
