"""Tasks of the experiments' cases: with the sizes of a case, or with a range of dynamic sizes."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.paper_vortex.cases import Case, Conv, Gemm
from tilewright.expr.computation import Axis, Computation, Reducer
from tilewright.expr.dtype import float32
from tilewright.expr.nodes import Buffer, Expr, Symbol, Var, as_expr
from tilewright.graph.coalesce_axes import make_kernel
from tilewright.loops.lowering import lower_to_loops
from tilewright.machine import Target
from tilewright.optimize.task import Task
from tilewright.tile.shape_samples import ShapeSamples

MAX_SIDE = 224
"""Upper end of the range of a picture's height and width, unless a case is larger."""

WEIGHTS = "w"


@dataclass(frozen=True, slots=True, eq=False)
class CaseKernel:
    """A kernel for a case.

    Attributes:
        task: the kernel.
        sizes: of its symbols in the case; empty where all sizes are literal.
    """

    task: Task
    sizes: Mapping[Var, int]


def case_kernel(case: Case, dynamic: bool) -> CaseKernel:
    """The kernel of a case, of exactly its sizes or of dynamic ones."""
    return _product(case, dynamic) if isinstance(case, Gemm) else _convolution(case, dynamic)


def _product(case: Gemm, dynamic: bool) -> CaseKernel:
    rows = Symbol("rows", 1, max(case.m, case.most_rows))
    sizes = {rows: case.m} if dynamic else {}
    m, n, k = _axes("mnk", (rows if dynamic else case.m, case.n, case.k))
    x, w = _buffer("x", m.extent, k.extent), _buffer(WEIGHTS, k.extent, n.extent)
    out = _buffer("y", m.extent, n.extent)
    return _kernel(Computation(out, (m, n), (k,), x[m.var, k.var] * w[k.var, n.var], Reducer.SUM), sizes)


def _convolution(case: Conv, dynamic: bool) -> CaseKernel:
    most = max(MAX_SIDE, case.h, case.w)
    least = (max(1, case.r - 2 * case.pad_h), max(1, case.s - 2 * case.pad_w))
    h, w = (Symbol(name, low, most) for name, low in zip(("height", "width"), least, strict=True))
    sizes = {h: case.h, w: case.w} if dynamic else {}
    height, width = (as_expr(x) for x in ((h, w) if dynamic else (case.h, case.w)))
    out_h = (height + (2 * case.pad_h - case.r)) // case.stride_h + 1
    out_w = (width + (2 * case.pad_w - case.s)) // case.stride_w + 1
    n, o, y, x = _axes("noyx", (case.n, case.o, out_h, out_w))
    c, r, s = _axes("crs", (case.c, case.r, case.s))
    # a picture with its borders, which a copy of its own makes in compiled models
    picture = _buffer("x", n.extent, c.extent, height + 2 * case.pad_h, width + 2 * case.pad_w)
    image = picture[n.var, c.var, y.var * case.stride_h + r.var, x.var * case.stride_w + s.var]
    weights = _buffer(WEIGHTS, o.extent, c.extent, r.extent, s.extent)[o.var, c.var, r.var, s.var]
    out = _buffer("y", n.extent, o.extent, out_h, out_w)
    return _kernel(Computation(out, (n, o, y, x), (c, r, s), image * weights, Reducer.SUM), sizes)


def _kernel(stage: Computation, sizes: Mapping[Var, int]) -> CaseKernel:
    kernel = make_kernel([stage], (stage.output,))
    func = lower_to_loops("case", kernel.stages, kernel.params, tuple(sizes))
    pairs = zip(kernel.params, kernel.arguments, strict=True)
    constants = frozenset(p.name for p, a in pairs if a.name == WEIGHTS)
    samples = ShapeSamples.of(tuple(sizes)) if sizes else None
    return CaseKernel(Task(func, constants, Target.host(), kernel.fusion, samples), sizes)


def _axes(names: str, extents: tuple[Expr | int, ...]) -> list[Axis]:
    return [Axis(Var(name), as_expr(extent)) for name, extent in zip(names, extents, strict=True)]


def _buffer(name: str, *shape: Expr) -> Buffer:
    return Buffer(name, shape, float32)
