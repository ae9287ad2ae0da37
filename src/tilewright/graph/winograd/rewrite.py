"""Winograd rewrite: convolutions computed by minimal filtering where a callback chooses so."""

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
"""Given the stages of the direct convolution and some Winograd forms, the form that is worth it; None for the direct
one."""


def with_winograd(
    program: Program, outputs: Sequence[int], choose: ChooseForm, max_error_growth: float = inf
) -> Program:
    """The program in which some convolutions of stride 1 are computed by minimal filtering; the program itself where
    none is.

    Convolutions with non-constant weights, groups, strides or dilations stay. One infinite element makes a whole tile
    NaN; otherwise only rounding errors differ.

    Args:
        program: as the graph was lowered.
        outputs: candidate tile sizes, m of F(m, r): used in all spatial dimensions and, with more than two of them,
            also in the last two alone.
        choose: chooses among the forms, per convolution.
        max_error_growth: rounding errors grow by less than this factor (`stages.error_growth`).
    """
    taken = set(program.buffer_names)
    private_copies = _private_copies(program)

    constants = dict(program.constants)
    steps: list[Step] = []
    inlined_copies: set[Buffer] = set()
    for step in program.steps:
        convolution = match_convolution(step, program.constants)
        form = None
        if convolution is not None:
            options = _tile_size_options(len(convolution.spatial), outputs)
            allowed = [t for t in options if error_growth(convolution, t) < max_error_growth]
            form = _choose_form(convolution, allowed, choose, private_copies.get(convolution.data.buffer), taken)
        if convolution is None or form is None:
            steps.append(step)
            continue
        taken |= {s.output.name for s in form.stages} | {form.transformed_weights.name}
        weights = program.constants[convolution.weights.buffer.name]
        constants[form.transformed_weights.name] = transform_weights(convolution, form.tile_sizes, weights)
        steps += form.stages
        if convolution.data.buffer not in form.padded_input.inputs:
            inlined_copies.add(convolution.data.buffer)
    if len(constants) == len(program.constants):
        return program
    kept_steps = tuple(s for s in steps if not (isinstance(s, Computation) and s.output in inlined_copies))
    read = {b.name for s in kept_steps for b in s.inputs} | {b.name for _, b in program.outputs}
    live = read | {b.name for s in kept_steps for b in step_outputs(s)} | {b.name for b in program.inputs}
    values = {name: b for name, b in program.values.items() if b.name in live}
    return replace(
        program, steps=kept_steps, constants={n: constants[n] for n in constants if n in read}, values=values
    )


def _tile_size_options(dimensions: int, outputs: Sequence[int]) -> list[tuple[int, ...]]:
    """Tile sizes per dimension, 0 for an untiled one: all dimensions are tiled or, of more than two, the last two.

    A third tiled dimension would multiply rounding errors and the size of intermediates once more.
    """
    untiled_counts = {0, max(dimensions - 2, 0)}
    return [(0,) * k + (m,) * (dimensions - k) for m in outputs for k in sorted(untiled_counts)]


def _private_copies(program: Program) -> Mapping[Buffer, Computation]:
    """Copies (of padding, with little arithmetic) with one reader that are no outputs, by the buffer that they
    write."""
    readers: dict[Buffer, int] = {}
    for s in program.steps:
        for b in dict.fromkeys(s.inputs):
            readers[b] = readers.get(b, 0) + 1
    outputs = {b for _, b in program.outputs}
    return {
        s.output: s
        for s in program.steps
        if isinstance(s, Computation)
        and not s.is_reduction
        and len(loads(s.body)) == 1
        and readers.get(s.output) == 1
        and s.output not in outputs
    }


def _choose_form(
    convolution: Convolution,
    tile_size_options: Sequence[tuple[int, ...]],
    choose: ChooseForm,
    copy: Computation | None,
    taken: set[str],
) -> WinogradForm | None:
    """The chosen form of one convolution; `copy` writes its input for it alone and is inlined into the form."""

    def name(what: str) -> str:
        return unique_name(f"{convolution.stage.output.name}_{what}", taken)

    forms = [make_winograd_form(convolution, tile_sizes, name) for tile_sizes in tile_size_options]
    if not forms:
        return None
    if copy is None:
        return choose((convolution.stage,), forms)
    return choose(
        (copy, convolution.stage), [replace(form, padded_input=inline_into(copy, form.padded_input)) for form in forms]
    )
