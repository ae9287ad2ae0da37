"""Random layouts for all operators of a network preserve its results."""

from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.layouts.networks import Net, Primitives, blocked, feeds
from tests.graph.running import program_of, run_program

from tilewright.expr.computation import Computation
from tilewright.graph.layouts.plan import Choice, Variant, contraction_operands, contractions
from tilewright.graph.layouts.propagate import propagate
from tilewright.graph.program import Program
from tilewright.layout.primitives import Fuse, Pad, Reorder, Split, Unfold

CHANNELS = 8


@cache
def network() -> tuple[Program, list[np.ndarray]]:
    """Residuals, poolings, views, several readers, outputs in the middle; and what it computes."""
    net = Net(CHANNELS, 8)
    a = net.op("Relu", net.conv("x", "first", CHANNELS, 1), name="relu")
    b = net.conv(a, "second", CHANNELS, 3)
    c = net.op("Add", net.op("Tanh", b, name="tanh"), a, name="add")
    d = net.conv(c, "third", CHANNELS, 1, bias=False)
    e = net.conv(net.op("MaxPool", c, name="pool", kernel_shape=[3, 3], pads=[1] * 4), "fourth", CHANNELS, 3)
    f = net.op("Mul", d, net.op("Sigmoid", e, name="gate"), name="mul")
    g = net.op("GlobalAveragePool", net.conv(f, "fifth", CHANNELS, 3, 2), name="mean")
    program = program_of(net.model(g, a, d))
    return program, run_program(program, feeds(2, CHANNELS, 8, 8))


def activations(height: int) -> st.SearchStrategy[Primitives]:
    """Layouts of [N, 8, H, W]."""
    tile = height // 2 + 1
    fixed: list[Primitives] = [
        (),
        blocked(CHANNELS, 4),
        blocked(CHANNELS, 2),
        (Reorder((0, 2, 3, 1)),),
        (Fuse(2, 2),),
        (Split(2, (2, height // 2)), Reorder((0, 2, 1, 3, 4))),
        (Pad(1, 0, 4), *blocked(12, 4)),
        (Unfold(2, tile, tile - 2), Reorder((0, 2, 1, 3, 4))),
        (Unfold(2, tile, tile - 2), Unfold(4, tile, tile - 2)),
    ]
    return st.sampled_from(fixed)


def weights(c: Computation) -> st.SearchStrategy[Primitives]:
    """Layouts of [8, 8, KH, KW]."""
    size = contraction_operands(c)[1].rank
    return st.sampled_from(
        [(), (Split(0, (2, 4)), Reorder((0, 2, 3, 4, 1))), (Reorder((*range(1, size), 0)),), (Pad(0, 0, 8),)]
    )


@st.composite
def plans(draw: st.DrawFn) -> tuple[dict[str, Choice], Variant]:
    """Choices for some operators, in some order."""
    program, _ = network()
    choices: dict[str, Choice] = {}
    for c in draw(st.permutations(contractions(program))):
        sizes = [int(str(b.shape[2])) for b in (c.output, contraction_operands(c)[0])]
        output, source = (draw(st.none() | activations(n - n % 2)) if n % 2 == 0 else None for n in sizes)
        if draw(st.booleans()):
            choices[c.output.name] = Choice(output, (source, draw(st.none() | weights(c))))
    return choices, draw(st.sampled_from(Variant))


@settings(max_examples=60)
@given(plans())
def test_layouts_preserve_results(plan):
    program, expected_results = network()
    result = propagate(program, *plan)
    for actual, expected in zip(run_program(result.program, feeds(2, CHANNELS, 8, 8)), expected_results, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    # Every conversion is between two different layouts, and what the user sees is as it was.
    assert all(c.before != c.after for c in result.conversions)
    assert [b.shape for _, b in result.program.outputs] == [b.shape for _, b in program.outputs]
    assert result.program.inputs == program.inputs
    assert not any(p.propagated and (p.layout.expands or plan[1] is Variant.ADJACENT) for p in result.assignments)
