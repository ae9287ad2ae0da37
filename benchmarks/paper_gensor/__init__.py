"""Experiments of the Gensor paper on CPUs: construction without measurement against a measured search.

Modules in reading order: `operators.py` has the kernels, `duel.py` times constructed programs against the best of the
search, `ablation.py` has parts of Gensor alone, `construction.py` times construction itself, `value_iteration.py`
repeats the paper's convergence argument as an experiment, `tables.py` shows results.
"""
