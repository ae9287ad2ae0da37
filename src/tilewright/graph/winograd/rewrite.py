"""The pass: sliding filters of a program computed by minimal filtering, where a decision says so."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf

from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Buffer
from tilewright.expr.traversal import loads
from tilewright.graph.inline_elementwise import inline_into
from tilewright.graph.program import Program, Step, step_outputs, unique_name
from tilewright.graph.winograd.match_convolution import Convolution, match_convolution
from tilewright.graph.winograd.stages import WinogradForm, error_growth, make_winograd_form, transform_weights

ChooseForm = Callable[[Sequence[Computation], Sequence[WinogradForm]], WinogradForm | None]
"""Given the stages of the direct way and some others, the one that is worth it; None where the direct one is."""


def with_winograd(
    program: Program, outputs: Sequence[int], choose: ChooseForm, max_error_growth: float = inf
) -> Program:
    """The program in which some convolutions of step 1 are computed by minimal filtering; itself where none is.

    Sums whose filter is not a constant, or that have groups, strides or dilations, stay. What is computed from infinite
    elements is NaN in a whole tile; otherwise only rounding errors differ.

    Args:
        program: as the graph was lowered.
        outputs: sizes of tiles, m of F(m, r), that may be used: in all dimensions along which a filter slides, and,
            where these are more than two, in the last two alone.
        decide: chooses among them, per convolution.
        limit: rounding errors grow by less than this (`stages.error_growth`).
    """
    taken = set(program.buffer_names)
    alone = _private_copies(program)

    def ways(found: Convolution) -> list[tuple[int, ...]]:
        return [w for w in _tile_size_options(len(found.spatial), outputs) if error_growth(found, w) < max_error_growth]

    constants = dict(program.constants)
    steps: list[Step] = []
    absorbed: set[Buffer] = set()
    for step in program.steps:
        found = match_convolution(step, program.constants)
        chosen = (
            None if found is None else _choose_form(found, ways(found), choose, alone.get(found.data.buffer), taken)
        )
        if found is None or chosen is None:
            steps.append(step)
            continue
        taken |= {s.output.name for s in chosen.stages} | {chosen.transformed_weights.name}
        weights = program.constants[found.weights.buffer.name]
        constants[chosen.transformed_weights.name] = transform_weights(found, chosen.tile_sizes, weights)
        steps += chosen.stages
        if found.data.buffer not in chosen.padded_input.inputs:
            absorbed.add(found.data.buffer)
    if len(constants) == len(program.constants):
        return program
    left = tuple(s for s in steps if not (isinstance(s, Computation) and s.output in absorbed))
    read = {b.name for s in left for b in s.inputs} | {b.name for _, b in program.outputs}
    kept = read | {b.name for s in left for b in step_outputs(s)} | {b.name for b in program.inputs}
    values = {name: b for name, b in program.values.items() if b.name in kept}
    return replace(program, steps=left, constants={n: constants[n] for n in constants if n in read}, values=values)


def _tile_size_options(dimensions: int, outputs: Sequence[int]) -> list[tuple[int, ...]]:
    """Sizes of tiles per dimension, 0 where there are none: all dimensions are cut, or the last two of more.

    A third dimension that is cut multiplies errors and the memory between the stages once more.
    """
    kept = {0, max(dimensions - 2, 0)}
    return [(0,) * k + (m,) * (dimensions - k) for m in outputs for k in sorted(kept)]


def _private_copies(program: Program) -> Mapping[Buffer, Computation]:
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


def _choose_form(
    convolution: Convolution,
    tile_size_options: Sequence[tuple[int, ...]],
    choose: ChooseForm,
    copy: Computation | None,
    taken: set[str],
) -> WinogradForm | None:
    """What is decided for one filter; `copy` is what writes its input for it alone and goes into the source."""

    def name(what: str) -> str:
        return unique_name(f"{convolution.stage.output.name}_{what}", taken)

    made = [make_winograd_form(convolution, w, name) for w in tile_size_options]
    if not made:
        return None
    if copy is None:
        return choose((convolution.stage,), made)
    return choose((copy, convolution.stage), [replace(f, padded_input=inline_into(copy, f.padded_input)) for f in made])
