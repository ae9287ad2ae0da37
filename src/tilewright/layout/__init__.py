"""Layouts: where each element of a tensor lives, as data; rewriting of accesses; propagation over a program."""
