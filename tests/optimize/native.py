"""Native code of scheduled programs."""

import numpy as np
from tests.codegen.native import Native
from tests.optimize.programs import Program, data_for, scheduled, shape_of

from tilewright.loops.interpreter import interpret
from tilewright.lower.prepack_constants import prepack_constants
from tilewright.optimize.interface import Optimizer


def same(program: Program, target: str, optimizer: Optimizer, *, any_kind: bool = False) -> None:
    """Native code agrees with the interpreter on the same schedule; `any_kind` as in `scheduled`."""
    kernel, _, schedule = scheduled(program, target, optimizer, any_kind=any_kind)
    func = prepack_constants(schedule.func, frozenset()).func
    rng = np.random.default_rng(7)
    inputs = set(kernel.inputs)
    arrays: dict[str, np.ndarray] = {}
    for b in func.params:
        shape = shape_of(b, program.sizes)
        arrays[b.name] = data_for(b, program.sizes, rng) if b in inputs else np.full(shape, 99, b.dtype.numpy)
    expected = {name: a.copy() for name, a in arrays.items()}
    interpret(func, expected, program.sizes)
    native = Native(func, target=target)
    for threads in (1, 3):
        actual = native(arrays, {v.name: n for v, n in program.sizes.items()}, threads)
        for p in kernel.outputs:
            np.testing.assert_array_equal(actual[p.name], expected[p.name])
