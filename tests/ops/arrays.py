"""Random floats and integer indices for tests of operators."""

import numpy as np

rng = np.random.default_rng(11)


def floats(*shape, dtype=np.float32):
    return rng.uniform(-3, 3, shape).astype(dtype)


def index(*values, dtype=np.int64):
    return np.array(values, dtype)
