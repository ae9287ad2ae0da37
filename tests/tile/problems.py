"""Problems and tile sizes for tests of programs and of their costs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Var
from tilewright.loops.lowering import lower_to_loops
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem, ProblemAxis, extract_problem
from tilewright.tile.program import Sizes, Sketch

SKETCH = Sketch(1, 2, (0, 1), 2)
"""Vectors of two elements along the columns of a matrix product."""


def problem(stages: Sequence[Computation], symbols: Mapping[Var, int] | None = None, constants: str = "") -> Problem:
    """The problem of stages, which must have one."""
    extracted = problem_or_none(stages, symbols, constants)
    assert extracted is not None
    return extracted


def problem_or_none(
    stages: Sequence[Computation], symbols: Mapping[Var, int] | None = None, constants: str = ""
) -> Problem | None:
    """The problem of stages, None where they have none."""
    computed = {s.output for s in stages}
    inputs = dict.fromkeys(x for s in stages for x in s.inputs if x not in computed)
    func = lower_to_loops("f", stages, (*inputs, stages[-1].output), tuple(symbols or {}))
    return extract_problem(func, frozenset(constants.split()))


def matrix_product(m: int, n: int, k: int) -> Problem:
    """C[m, n] = A[m, k] * B[k, n]"""
    axes = (ProblemAxis("i", m, True, False), ProblemAxis("j", n, True, False), ProblemAxis("k", k, True, True))
    A = Operand("A", 4, False, (m, k), ((1, 0, 0), (0, 0, 1)), False)
    B = Operand("B", 4, True, (k, n), ((0, 0, 1), (0, 1, 0)), False)
    C = Operand("C", 4, False, (m, n), ((1, 0, 0), (0, 1, 0)), True)
    return Problem("C", "C", axes, (A, B), (C,), 1, 32)


def two_inputs(m: int, n: int, k: int) -> Problem:
    """`matrix_product` whose second operand is no constant."""
    p = matrix_product(m, n, k)
    return replace(p, operands=(p.operands[0], replace(p.operands[1], constant=False)))


def batched_product(heads: int, m: int, n: int, k: int, tokens_first: bool) -> Problem:
    """C[h, m, n] = P[h, m, k] * V[h, k, n], or V[k, h, n] with `tokens_first`."""
    axes = [ProblemAxis(x, size, True, x == "k") for x, size in (("h", heads), ("i", m), ("j", n), ("k", k))]
    h, i, j, t = ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1))
    P = Operand("P", 4, False, (heads, m, k), (h, i, t), False)
    V = Operand(
        "V", 4, False, (k, heads, n) if tokens_first else (heads, k, n), (t, h, j) if tokens_first else (h, t, j), False
    )
    return Problem("C", "C", tuple(axes), (P, V), (Operand("C", 4, False, (heads, m, n), (h, i, j), True),), 2, 32)


@st.composite
def tiles(draw: st.DrawFn) -> tuple[Problem, Sizes]:
    """A small product and sizes that fill it without remainders."""

    def tiling(max_factor: int) -> tuple[int, int, int, int]:
        register = draw(st.integers(1, 2))
        l1 = register * draw(st.integers(1, max_factor))
        l2 = l1 * draw(st.integers(1, 2))
        return register, l1, l2, l2 * draw(st.integers(1, 2))

    rows, columns = tiling(2), tuple(2 * x for x in tiling(2))
    register, l1, l2, _ = tiling(2)
    sizes = np.array([[rows[level], columns[level], (register, l1, l2)[level]] for level in range(3)])
    return matrix_product(rows[3], columns[3], l2), sizes[None].astype(np.int64)
