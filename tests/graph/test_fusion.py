"""The fusion of a kernel: its pattern, its rows, and the roles of its computations."""

import pytest
from tests.graph.kernels import N, axes, buffer, pointwise, reduced
from tests.optimize.computations import normalised, windows

from tilewright.expr.computation import Computation, Reducer
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Var
from tilewright.expr.operations import unary
from tilewright.graph.coalesce_axes import make_kernel
from tilewright.graph.fusion import (
    MAX_INTERMEDIATE_BYTES,
    FusedStage,
    Fusion,
    FusionPattern,
    StageRole,
    fusion_of,
    shared_outer_axes,
)

i, j, k, r = (Var(n) for n in "ijkr")
ELEMENTWISE, ROW_REDUCTION = FusedStage(StageRole.ELEMENTWISE), FusedStage(StageRole.ROW_REDUCTION)
EPILOGUE = FusedStage(StageRole.EPILOGUE)


def register_reduction(epilogue: int | None = None) -> FusedStage:
    """A reduction that accumulates in registers."""
    return FusedStage(StageRole.REGISTER_REDUCTION, epilogue)


def softmax(columns: int) -> list[Computation]:
    """The maximum of a row, exponentials, their sum, quotients."""
    x, m, e, s = buffer("x", N, columns), buffer("m", N), buffer("e", N, columns), buffer("s", N)
    inner = axes("r", [columns])
    return [
        reduced(m, "i", inner, x[i, r], Reducer.MAX),
        pointwise(e, "ij", unary("exp", x[i, j] - m[i])),
        reduced(s, "i", inner, e[i, r]),
        pointwise(buffer("y", N, columns), "ij", e[i, j] / s[i]),
    ]


def test_single_computations() -> None:
    x, y = buffer("x", N, 4), buffer("y", N, 4)
    assert make_kernel([pointwise(y, "ij", x[i, j] + 1.0)]).fusion == Fusion(
        FusionPattern.ELEMENTWISE, 1, (ELEMENTWISE,)
    )
    fusion = make_kernel([reduced(buffer("t", N), "i", axes("r", [4]), x[i, r])]).fusion
    assert fusion == Fusion(FusionPattern.REDUCTION, 1, (register_reduction(),))


def test_a_reduction_with_its_epilogue() -> None:
    x, t = buffer("x", N, 5, 4), buffer("t", N, 5)
    stages = [reduced(t, "ij", axes("r", [4]), x[i, j, r]), pointwise(buffer("y", N, 5), "ij", t[i, j] + 1.0)]
    # the epilogue joins the reduction by the pattern; in rows of one element both are plain stages
    assert make_kernel(stages).fusion == Fusion(FusionPattern.REDUCTION, 1, (ROW_REDUCTION, ELEMENTWISE))


def test_an_epilogue_of_a_result_that_others_read_too_is_a_stage_of_a_row() -> None:
    x, t = buffer("x", N, 5, 4), buffer("t", N, 5)
    stages = [reduced(t, "ij", axes("r", [4]), x[i, j, r]), pointwise(buffer("y", N, 5), "ij", t[i, j] + 1.0)]
    kernel = make_kernel(stages, [s.output for s in stages])
    assert kernel.fusion == Fusion(FusionPattern.ROWWISE, 1, (ROW_REDUCTION, ELEMENTWISE))
    assert [b.name for b in kernel.outputs] == ["out0", "out1"]


def test_rows_of_a_softmax() -> None:
    stages = (ROW_REDUCTION, ELEMENTWISE, ROW_REDUCTION, ELEMENTWISE)
    assert make_kernel(softmax(100)).fusion == Fusion(FusionPattern.ROWWISE, 1, stages)


def test_windows_with_their_epilogue_accumulate_in_registers() -> None:
    padded, reduction, last = windows(3, (9, 9), (3, 3), 1, 1, weighted=True, epilogue=True)
    assert make_kernel([padded, reduction, last]).fusion == Fusion(
        FusionPattern.ROWWISE, 1, (ELEMENTWISE, register_reduction(2), EPILOGUE)
    )
    assert make_kernel([padded, reduction]).fusion.stages == (ELEMENTWISE, register_reduction())


def test_there_is_one_limit_of_rows() -> None:
    # the exponentials, and two values per row
    largest = MAX_INTERMEDIATE_BYTES // 4 - 2
    assert make_kernel(softmax(largest)).fusion.pattern is FusionPattern.ROWWISE
    assert make_kernel(softmax(largest + 1)).fusion.pattern is FusionPattern.SEQUENCE


def test_rows_of_symbolic_length_are_private_where_reductions_give_one_value() -> None:
    x, t = buffer("x", 8, N), buffer("t", 8, N)
    stages = [pointwise(t, "ij", unary("exp", x[i, j])), reduced(buffer("y", 8), "i", axes("r", [N]), t[i, r])]
    assert make_kernel(stages).fusion.pattern is FusionPattern.ROWWISE
    assert make_kernel(stages, [s.output for s in stages]).fusion.pattern is FusionPattern.ROWWISE
    x, t = buffer("x", 8, N, 3), buffer("t", 8, N, 3)
    several = [
        pointwise(t, "ijk", unary("exp", x[i, j, k])),
        reduced(buffer("y", 8, N), "ij", axes("r", [3]), t[i, j, r] * t[i, 0, r]),
    ]
    assert make_kernel(several).fusion.pattern is FusionPattern.SEQUENCE
    # as a result of the kernel it needs no place in a row
    assert make_kernel(several, [s.output for s in several]).fusion.pattern is FusionPattern.ROWWISE


def test_results_at_data_dependent_indices_share_no_axes() -> None:
    x, t, place = buffer("x", N, 4), buffer("t", N, 4), buffer("place", N, 4, dtype=int64)
    stages = [pointwise(t, "ij", x[i, j] * 2.0), pointwise(buffer("y", N, 4), "ij", t[i, place[i, j]])]
    assert shared_outer_axes(stages) == 0


@pytest.mark.parametrize("rows", [1, 64])
def test_names_do_not_matter(rows: int) -> None:
    stages = normalised(rows, 30)
    kernel = make_kernel(stages)
    assert fusion_of(kernel.stages, {b.name for b in kernel.outputs}) == kernel.fusion
