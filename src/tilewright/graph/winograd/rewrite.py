"""Winograd forms: convolutions of stride 1 computed by minimal filtering, as alternatives of the direct sum."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Buffer
from tilewright.expr.traversal import loads
from tilewright.graph.alternatives import Alternative
from tilewright.graph.inline_elementwise import inline_into
from tilewright.graph.program import Program
from tilewright.graph.winograd.match_convolution import Convolution, match_convolution
from tilewright.graph.winograd.stages import WinogradForm, error_growth, make_winograd_form, transform_weights
from tilewright.names import unique_name

TILE_SIZES = (2, 4)
"""Tile sizes that are proposed: m of F(m, r)."""


def winograd_forms(
    program: Program, max_error_growth: float, tile_sizes: Sequence[int] = TILE_SIZES
) -> Iterator[Alternative]:
    """The Winograd forms of all convolutions of stride 1, per convolution in the order of the tile sizes.

    Convolutions with non-constant weights, groups, strides or dilations have none. One infinite element makes a whole
    tile NaN; otherwise only rounding errors differ.

    Args:
        program: as the graph was lowered.
        max_error_growth: rounding errors grow by less than this factor (`stages.error_growth`).
        tile_sizes: m of F(m, r): used in all spatial dimensions and, with more than two of them, also in the last two
            alone.
    """
    taken = set(program.buffer_names)
    private_copies = _private_copies(program)
    for step in program.steps:
        convolution = match_convolution(step, program.constants)
        if convolution is None:
            continue
        copy = private_copies.get(convolution.data.buffer)
        options = _tile_size_options(len(convolution.spatial), tile_sizes)
        forms = [
            _winograd_form(program, convolution, sizes, copy, taken)
            for sizes in options
            if error_growth(convolution, sizes) < max_error_growth
        ]
        # forms of one convolution exclude each other, those of different ones do not
        taken |= {b.name for form in forms for b in (*(s.output for s in form.after), *form.constants)}
        yield from forms


def _tile_size_options(dimensions: int, tile_sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Tile sizes per dimension, 0 for an untiled one: all dimensions are tiled or, of more than two, the last two.

    A third tiled dimension would multiply rounding errors and the size of intermediates once more.
    """
    untiled_counts = {0, max(dimensions - 2, 0)}
    return [(0,) * k + (m,) * (dimensions - k) for m in tile_sizes for k in sorted(untiled_counts)]


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


def _winograd_form(
    program: Program,
    convolution: Convolution,
    tile_sizes: tuple[int, ...],
    copy: Computation | None,
    taken: set[str],
) -> Alternative:
    """One form of one convolution; `copy` writes its input for it alone and is inlined into the form."""

    def name(what: str) -> str:
        return unique_name(f"{convolution.stage.output.name}_{what}", taken, separator="")

    form = make_winograd_form(convolution, tile_sizes, name)
    before: tuple[Computation, ...] = (convolution.stage,)
    if copy is not None:
        form = replace(form, padded_input=inline_into(copy, form.padded_input))
        before = (copy, convolution.stage)
    weights = program.constants[convolution.weights.buffer.name]
    growth = error_growth(convolution, tile_sizes)
    fewer = prod(f.tile_size * f.taps / f.multiplications for f in form.transforms)
    return Alternative(
        _name(form),
        before,
        form.stages,
        f"{fewer:.3g} times fewer multiplications; rounding errors up to {growth:.3g} times as large",
        growth,
        {form.transformed_weights: partial(transform_weights, convolution, tile_sizes, weights)},
    )


def _name(form: WinogradForm) -> str:
    """Such as "winograd F(2x2, 3x3)", of the tiled dimensions."""
    sizes, taps = ("x".join(map(str, n)) for n in zip(*((f.tile_size, f.taps) for f in form.transforms), strict=True))
    return f"winograd F({sizes}, {taps})"
