"""Sizes by the table are those of the full check of inputs, and refused exactly where that reports a problem."""

from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import Defect
from tilewright.runtime.feeds import InputSignature
from tilewright.runtime.manifest import Dim, SymbolSpec, TensorSpec
from tilewright.runtime.shape_binder import make_binder

SYMBOLS = (SymbolSpec("n", 0, None), SymbolSpec("m", 2, 5), SymbolSpec("k", 1, 3))

dims: st.SearchStrategy[Dim] = st.one_of(st.integers(0, 3), st.sampled_from([s.name for s in SYMBOLS]))


@st.composite
def declared_and_actual(draw: st.DrawFn) -> tuple[tuple[TensorSpec, ...], list[tuple[int, ...]]]:
    """Inputs, and shapes that often suit them."""
    declared = draw(st.lists(st.lists(dims, max_size=3), min_size=1, max_size=3))
    specs = tuple(TensorSpec(f"x{k}", "float32", tuple(d)) for k, d in enumerate(declared))
    chosen = {s.name: draw(st.integers(0, 6)) for s in SYMBOLS}
    fitting = [tuple(d if isinstance(d, int) else chosen[d] for d in spec.dims) for spec in specs]
    if draw(st.booleans()):
        position = draw(st.integers(0, len(specs) - 1))
        fitting[position] = tuple(draw(st.lists(st.integers(0, 6), max_size=3)))
    return specs, fitting


@given(declared_and_actual())
def test_binder_agrees_with_the_signature(case: tuple[tuple[TensorSpec, ...], list[tuple[int, ...]]]) -> None:
    specs, actual = case
    names = sorted({d for spec in specs for d in spec.dims if isinstance(d, str)})
    bind = make_binder(specs, SYMBOLS, names)
    assert bind is not None
    problems: list[Defect] = []
    by_name = {spec.name: shape for spec, shape in zip(specs, actual, strict=True)}
    expected = InputSignature(specs, SYMBOLS).bind(by_name, {}, problems)
    assert bind(actual) == (None if problems else tuple(expected[n] for n in names))


def test_symbols_that_inputs_lack_have_no_binder() -> None:
    specs = (TensorSpec("x", "float32", ("n", 3)),)
    assert make_binder(specs, SYMBOLS, ["m"]) is None
    assert make_binder((TensorSpec("x", "any", ("n",)),), SYMBOLS, ["n"]) is None
