"""Optimizers: each maps a kernel's untransformed loops to a schedule, behind one interface and one registry."""
