"""The rewrites that propose alternatives for a program, see `graph/alternatives.py`."""

from tilewright.graph.alternatives import Rewrite
from tilewright.graph.densify_operands import dense_copies
from tilewright.graph.winograd.rewrite import winograd_forms

REWRITES: tuple[Rewrite, ...] = (winograd_forms, dense_copies)
"""All rewrites, in the order in which their alternatives are shown."""
