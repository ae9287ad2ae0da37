"""Random programs, randomly scheduled: whatever the primitives accept must keep its meaning, down to native code.

`python -m tests.fuzz --help` runs campaigns (`make fuzz-schedules` a long one). Read in this order: `computations.py`
draws what is computed, `layouts.py` how its tensors are stored, `draw.py` the steps of a schedule, `case.py` is a
program as data, `check.py` decides whether it is right, `worker.py` does so in a process of its own, `shrink.py` makes
a failing case small, `campaign.py` runs thousands.
"""
