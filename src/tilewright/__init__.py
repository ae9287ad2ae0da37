"""Tilewright: a compiler for deep-learning inference."""
