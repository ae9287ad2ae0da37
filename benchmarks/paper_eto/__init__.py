"""Experiments of the ETO paper on CPUs: reuse of tuned programs between a model's operators against full searches.

Modules in reading order: `operator_sets.py` has the paper's nine sets of operators, from `operators.csv`;
`operator_tasks.py` makes tasks of them; `methods.py` tunes a set; `tables.py` shows results.
"""
