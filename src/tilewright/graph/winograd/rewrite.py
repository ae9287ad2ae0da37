"""The pass: sliding filters of a program computed by minimal filtering, where a decision says so."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf

from tilewright.expr.buffer import Buffer
from tilewright.expr.computation import Computation
from tilewright.expr.nodes import loads
from tilewright.graph.inline import inlined
from tilewright.graph.program import Program, Step, free_name, written
from tilewright.graph.winograd.sliding import Sliding, sliding
from tilewright.graph.winograd.stages import Fast, amplification, fast, transformed_weights

Decide = Callable[[Sequence[Computation], Sequence[Fast]], Fast | None]
"""Given the stages of the direct way and some others, the one that is worth it; None where the direct one is."""


def with_winograd(program: Program, outputs: Sequence[int], decide: Decide, limit: float = inf) -> Program:
    """The program in which some convolutions of step 1 are computed by minimal filtering; itself where none is.

    Sums whose filter is not a constant, or that have groups, strides or dilations, stay. What is computed from infinite
    elements is NaN in a whole tile; otherwise only rounding errors differ.

    Args:
        program: as the graph was lowered.
        outputs: sizes of tiles, m of F(m, r), that may be used: in all dimensions along which a filter slides, and,
            where these are more than two, in the last two alone.
        decide: chooses among them, per convolution.
        limit: rounding errors grow by less than this (`stages.amplification`).
    """
    taken = set(program.names)
    alone = _used_once(program)

    def ways(found: Sliding) -> list[tuple[int, ...]]:
        return [w for w in _tilings(len(found.slides), outputs) if amplification(found, w) < limit]

    constants = dict(program.constants)
    steps: list[Step] = []
    absorbed: set[Buffer] = set()
    for step in program.steps:
        found = sliding(step, program.constants)
        chosen = None if found is None else _chosen(found, ways(found), decide, alone.get(found.data.buffer), taken)
        if found is None or chosen is None:
            steps.append(step)
            continue
        taken |= {s.output.name for s in chosen.stages} | {chosen.weights.name}
        weights = program.constants[found.weights.buffer.name]
        constants[chosen.weights.name] = transformed_weights(found, chosen.outputs, weights)
        steps += chosen.stages
        if found.data.buffer not in chosen.source.inputs:
            absorbed.add(found.data.buffer)
    if len(constants) == len(program.constants):
        return program
    left = tuple(s for s in steps if not (isinstance(s, Computation) and s.output in absorbed))
    read = {b.name for s in left for b in s.inputs} | {b.name for _, b in program.outputs}
    kept = read | {b.name for s in left for b in written(s)} | {b.name for b in program.inputs}
    values = {name: b for name, b in program.values.items() if b.name in kept}
    return replace(program, steps=left, constants={n: constants[n] for n in constants if n in read}, values=values)


def _tilings(dimensions: int, outputs: Sequence[int]) -> list[tuple[int, ...]]:
    """Sizes of tiles per dimension, 0 where there are none: all dimensions are cut, or the last two of more.

    A third dimension that is cut multiplies errors and the memory between the stages once more.
    """
    kept = {0, max(dimensions - 2, 0)}
    return [(0,) * k + (m,) * (dimensions - k) for m in outputs for k in sorted(kept)]


def _used_once(program: Program) -> Mapping[Buffer, Computation]:
    """Copies (of padding, or with little more) that a single step reads and nobody else sees, by what they write."""
    readers: dict[Buffer, int] = {}
    for s in program.steps:
        for b in dict.fromkeys(s.inputs):
            readers[b] = readers.get(b, 0) + 1
    seen = {b for _, b in program.outputs}
    return {
        s.output: s
        for s in program.steps
        if isinstance(s, Computation)
        and not s.is_reduction
        and len(loads(s.body)) == 1
        and readers.get(s.output) == 1
        and s.output not in seen
    }


def _chosen(
    found: Sliding, tilings: Sequence[tuple[int, ...]], decide: Decide, copy: Computation | None, taken: set[str]
) -> Fast | None:
    """What is decided for one filter; `copy` is what writes its input for it alone and goes into the source."""

    def name(what: str) -> str:
        return free_name(f"{found.stage.output.name}_{what}", taken)

    made = [fast(found, w, name) for w in tilings]
    if not made:
        return None
    if copy is None:
        return decide((found.stage,), made)
    return decide((copy, found.stage), [replace(f, source=inlined(copy, f.source)) for f in made])
