"""The experiments of Gensor's paper, for processors: construction without measurement against a measured search.

Read in this order: `operators.py` says what is constructed, `space.py` draws programs of the constructors' own space,
`clock.py` measures programs, `search.py` looks for the best one by measurement, `duel.py` lets constructed programs and
the best one found run against each other, `construction.py` takes the time of construction itself, `payoff.py` is the
paper's argument about convergence as an experiment, `store.py` keeps results, `tables.py` shows them.
"""
