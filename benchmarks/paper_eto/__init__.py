"""Experiments of the ETO paper on CPUs: reuse of tuned programs between a model's operators against full searches.

`operator_sets.py` has the paper's nine sets of operators, from `operators.csv`.
"""
