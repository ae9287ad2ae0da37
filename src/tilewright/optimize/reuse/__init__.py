"""Reuse of tuned programs across operators, after ETO (VLDB 2022)."""
