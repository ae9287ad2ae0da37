"""Operators: one definition each (shape rule and tensor expression in one); everything else is derived."""
