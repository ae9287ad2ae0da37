"""Optimizers: they choose how a kernel's loops run. One small interface, one registry; every one may answer "not
applicable"."""
