"""Searches that measure: the programs of a task, and what of them is measured next."""
