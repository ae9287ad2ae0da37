"""Random ONNX models, compiled and called: results must be those of ONNX Runtime, and what it runs is not refused.

`python -m tests.fuzz_models --help` runs campaigns (`make fuzz-models` one of 2,000 models); workers, shrinking and
resuming are those of `tests.fuzz`. Read in this order: `builder.py` makes models from recorded choices, one node after
the other, each evaluated as it is drawn; `elements.py`, `windows.py`, `moves.py`, `data.py` and `control.py` have a
function per kind of node, listed in `nodes.py`; `check.py` decides whether the compiled model is right, `worker.py`
does so in a process of its own. What campaigns found lies in `found/` and is checked by the tests.
"""
