"""Experiments of the Gensor paper on CPUs: construction without measurement against a measured search.

Modules in reading order: `operators.py` has the kernels, `program_space.py` draws programs of the optimizers' space,
`timer.py` times programs, `search.py` searches by measurement, `duel.py` times constructed programs against the best
of the search, `construction.py` times construction itself, `value_iteration.py` repeats the paper's convergence
argument as an experiment, `store.py` keeps results, `tables.py` shows them.
"""
