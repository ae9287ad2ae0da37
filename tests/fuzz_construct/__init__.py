"""Random operators, constructed by `gensor` and `roller`: whatever they make must compute what the operator means.

`python -m tests.fuzz_construct --help` runs campaigns (`make fuzz-construct` one of 2,000 operators); workers,
shrinking and resuming are those of `tests.fuzz`. Read in this order: `builder.py` makes one-operator ONNX models from
recorded choices; `products.py`, `windows.py`, `rows.py` and `elements.py` have a function per kind of operator, listed
in `operators.py`; `way.py` chooses how one is compiled; `sample.py` says what the right results are and how far off
others may be; `check.py` decides whether what was constructed is right, `worker.py` does so in a process of its own.
What campaigns found lies in `found/` and is checked by the tests.
"""
