"""Densification: contractions with strided operands read dense copies of them.

    out[o, y, x] = sum(data[c, 2 y, 2 x] * weights[o, c] for c)

becomes

    near[c, y, x] = data[c, 2 y, 2 x]
    out[o, y, x] = sum(near[c, y, x] * weights[o, c] for c)

A contraction reads its operand once for every tile of the other one; in the copy it reads whole cache lines, and
adjacent dimensions can be coalesced again. Convolutions with strides and one tap are such contractions.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from itertools import chain, combinations

from tilewright.expr.algebra.polynomial import polynomial
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Axis, Computation
from tilewright.expr.nodes import Buffer, Expr, Load, Var
from tilewright.expr.pattern import is_sum_of_products
from tilewright.expr.traversal import free_vars, loads, replace_loads
from tilewright.graph.alternatives import Alternative
from tilewright.graph.program import Program, Step
from tilewright.names import unique_name


def dense_copies(program: Program, max_error_growth: float) -> Iterator[Alternative]:
    """Contractions that read some of their operands, in every combination, from dense copies.

    Constants stay as they are: they are prepacked when the kernel is compiled.

    Args:
        program: as the graph was lowered.
        max_error_growth: no limit, as the sums are the same ones.
    """
    taken = set(program.buffer_names)
    for step in program.steps:
        strided = strided_loads(step, program.constants)
        names: dict[Load, str] = {}
        for load in strided:
            names[load] = unique_name(f"{load.buffer.name}_near", taken, separator="")
            taken.add(names[load])
        for copied in chain.from_iterable(combinations(strided, n + 1) for n in range(len(strided))):
            assert isinstance(step, Computation)
            yield _with_dense_copies(step, {load: names[load] for load in copied})


def _with_dense_copies(stage: Computation, names: Mapping[Load, str]) -> Alternative:
    """A contraction that reads dense copies of some loads, given the names of the copies."""
    copies: list[Computation] = []
    contraction = stage
    for load, name in names.items():
        copy, contraction = densify(contraction, load, name)
        copies.append(copy)
    what = " and ".join(load.buffer.name for load in names)
    why = "tiles read whole cache lines of the copy"
    return Alternative(f"dense copy of {what}", (stage,), (*copies, contraction), why)


def strided_loads(stage: Step, constants: Container[str]) -> tuple[Load, ...]:
    """The loads of a sum of products, of non-constant data, that skip elements of a dimension."""
    if not isinstance(stage, Computation) or not is_sum_of_products(stage):
        return ()
    candidates = dict.fromkeys(x for x in loads(stage.body) if x.buffer.name not in constants)
    return tuple(x for x in candidates if _strided_dims(x))


def densify(stage: Computation, load: Load, name: str) -> tuple[Computation, Computation]:
    """A dense copy of what a load of a contraction reads, and the contraction that reads the copy.

    Args:
        stage: the contraction.
        load: one of its `strided_loads`.
        name: name of the copy.
    """
    extents: Mapping[Var, Expr] = {a.var: a.extent for a in (*stage.axes, *stage.reduce_axes)}
    strided = _strided_dims(load)
    axes: list[Axis] = []
    source: list[Expr] = []
    index: list[Expr] = []
    for k, (i, n) in enumerate(zip(load.indices, load.buffer.shape, strict=True)):
        var = Var(f"i{k}")
        if k in strided:
            axes.append(Axis(var, extents[strided[k]]))
            source.append(substitute(i, {strided[k]: var}))
            index.append(strided[k])
        else:
            axes.append(Axis(var, n))
            source.append(var)
            index.append(i)
    dense = Buffer(name, tuple(a.extent for a in axes), load.buffer.dtype)
    copy = Computation(dense, tuple(axes), (), Load(load.buffer, tuple(source)), None, stage.label)
    read = Load(dense, tuple(index))
    return copy, replace(stage, body=replace_loads(stage.body, lambda x: read if x == load else x))


def _strided_dims(x: Load) -> Mapping[int, Var]:
    """Dimensions of which a load reads every s-th element, s > 1, by an axis that occurs in no other dimension."""
    dims: dict[int, Var] = {}
    for k, i in enumerate(x.indices):
        terms = [(m, step) for m, step in polynomial(i).items() if m]
        if len(terms) != 1:
            continue
        ((monomial, step),) = terms
        var = monomial[0]
        is_only_use = all(var not in free_vars(j) for d, j in enumerate(x.indices) if d != k)
        if len(monomial) == 1 and isinstance(var, Var) and is_only_use and abs(step) > 1:
            dims[k] = var
    return dims
