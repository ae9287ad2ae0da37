"""Parallel loops whose iterations threads share as one range."""

from tilewright.expr.traversal import free_vars
from tilewright.loops.ir import For, LoopKind


def parallel_nest(loop: For) -> list[For]:
    """The loop and the parallel loops perfectly nested in it whose extents do not depend on the nest."""
    nest = [loop]
    while isinstance(nest[-1].body, For) and nest[-1].body.kind is LoopKind.PARALLEL:
        inner = nest[-1].body
        if free_vars(inner.extent) & {x.var for x in nest}:
            break
        nest.append(inner)
    return nest
