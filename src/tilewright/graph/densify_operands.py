"""Sums of products that read every second element, or fewer, of an operand: copied together first.

    out[o, y, x] = sum(data[c, 2 y, 2 x] * weights[o, c] for c)

becomes

    near[c, y, x] = data[c, 2 y, 2 x]
    out[o, y, x] = sum(near[c, y, x] * weights[o, c] for c)

A sum comes back to its operand for every tile of the other one; of the copy it then reads whole lines, and dimensions
that lie side by side again are walked as one. Convolutions with strides and one tap are such sums. Whether a copy is
worth it is decided by a function that the pass is given.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from tilewright.expr.algebra.polynomial import polynomial
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Axis, Computation
from tilewright.expr.nodes import Buffer, Expr, Load, Var
from tilewright.expr.pattern import is_sum_of_products
from tilewright.expr.traversal import free_vars, loads, replace_loads
from tilewright.graph.program import Program, Step, unique_name

IsFaster = Callable[[Computation, Sequence[Computation]], bool]
"""Given a sum and the stages that may compute it instead, whether those are faster."""


def densify_operands(program: Program, is_faster: IsFaster) -> Program:
    """The program in which sums read some of their operands from copies without gaps; itself where none does.

    Constants stay as they are: they are packed when the kernel is compiled.

    Args:
        program: as the graph was lowered.
        worth: decides, per operand.
    """
    taken = set(program.buffer_names)
    steps: list[Step] = []
    for step in program.steps:
        left = step
        for data in strided_loads(step, program.constants):
            name = unique_name(f"{data.buffer.name}_near", taken)
            assert isinstance(left, Computation)
            copy, rest = densify(left, data, name)
            if is_faster(left, (copy, rest)):
                taken.add(name)
                steps.append(copy)
                left = rest
        steps.append(left)
    return program if len(steps) == len(program.steps) else replace(program, steps=tuple(steps))


def strided_loads(stage: Step, constants: Container[str]) -> tuple[Load, ...]:
    """The loads of a sum of products, of data that is not known, that skip elements of a dimension."""
    if not isinstance(stage, Computation) or not is_sum_of_products(stage):
        return ()
    found = dict.fromkeys(x for x in loads(stage.body) if x.buffer.name not in constants)
    return tuple(x for x in found if _strided_dims(x))


def densify(stage: Computation, load: Load, name: str) -> tuple[Computation, Computation]:
    """A copy of what a load of a sum reads, without the elements that it skips, and the sum that reads the copy.

    Args:
        stage: the sum.
        data: one of the loads that `strided_loads` finds.
        name: of the copy.
    """
    extents: Mapping[Var, Expr] = {a.var: a.extent for a in (*stage.axes, *stage.reduce_axes)}
    skipping = _strided_dims(load)
    axes: list[Axis] = []
    source: list[Expr] = []
    index: list[Expr] = []
    for k, (i, n) in enumerate(zip(load.indices, load.buffer.shape, strict=True)):
        own = Var(f"i{k}")
        if k in skipping:
            axes.append(Axis(own, extents[skipping[k]]))
            source.append(substitute(i, {skipping[k]: own}))
            index.append(skipping[k])
        else:
            axes.append(Axis(own, n))
            source.append(own)
            index.append(i)
    near = Buffer(name, tuple(a.extent for a in axes), load.buffer.dtype)
    copy = Computation(near, tuple(axes), (), Load(load.buffer, tuple(source)), None, stage.label)
    read = Load(near, tuple(index))
    return copy, replace(stage, body=replace_loads(stage.body, lambda x: read if x == load else x))


def _strided_dims(x: Load) -> Mapping[int, Var]:
    """Dimensions of which a load reads every s-th element, s > 1, by an axis that no other dimension knows."""
    found: dict[int, Var] = {}
    for k, i in enumerate(x.indices):
        moving = [(m, step) for m, step in polynomial(i).items() if m]
        if len(moving) != 1:
            continue
        ((monomial, step),) = moving
        var = monomial[0]
        alone = all(var not in free_vars(j) for d, j in enumerate(x.indices) if d != k)
        if len(monomial) == 1 and isinstance(var, Var) and alone and abs(step) > 1:
            found[k] = var
    return found
