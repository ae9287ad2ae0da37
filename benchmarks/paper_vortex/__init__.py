"""Experiments of the Vortex paper on processors: programs of dynamic sizes against the best for every single shape.

Modules in reading order: `cases.py` has the shapes, `kernels.py` makes tasks of them, `timer.py` times programs in
turns, `duel.py` compares the system's variants with the oracle at one shape, `selection.py` measures what a choice
costs, `tables.py` shows the results.
"""
