"""Traces: recording, replay on the same and on other sizes, printing, checks of every step."""

import inspect
import re
from collections.abc import Callable
from typing import get_type_hints

import pytest
from tests.schedule.functions import CHAIN, MATMUL, check_same
from tests.schedule.schedules import chain_schedule, gemm, gemm_schedule

from tilewright.errors import ScheduleError
from tilewright.expr.define import Size, symbol
from tilewright.expr.nodes import MemoryScope, Symbol, Var
from tilewright.layout.layout import Layout
from tilewright.loops.ir import Func
from tilewright.loops.parser import parse
from tilewright.loops.printer import show
from tilewright.schedule.argument_kinds import SizeKind
from tilewright.schedule.arguments import parameters
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import PRIMITIVES, Step, replay
from tilewright.schedule.tails import Tail
from tilewright.verify.verifier import verify


def test_replay_gives_an_equal_function() -> None:
    s = chain_schedule()
    assert s.origin is CHAIN
    assert replay(CHAIN, s.trace) == s.func
    check_same(CHAIN, s.func)


def test_replay_on_another_function_checks_every_step() -> None:
    with pytest.raises(ScheduleError) as e:
        replay(MATMUL, chain_schedule().trace)
    step = "step 1, pack('T', 'B', 1, 4, name='B_packed')"
    assert str(e.value) == f"[schedule] {step}: matmul: there is no block 'T'; blocks are C"


def test_a_trace_prints(golden: Callable[[str], None]) -> None:
    s = chain_schedule()
    golden("\n".join(map(str, s.trace)) + "\n\n" + show(s.func))


def test_default_names_are_fresh() -> None:
    s = Schedule(MATMUL)
    assert s.split("i", 2) == ("i_o", "i_i")
    assert s.split("i_o", 2) == ("i_o_o", "i_o_i")
    assert s.fuse("i_o_o", "i_o_i") == "i_o_o_i_o_i"
    assert s.cache_write("C") == "C_local"
    assert replay(MATMUL, s.trace) == s.func


def test_methods_return_created_names() -> None:
    s = Schedule(CHAIN)
    assert (s.loops(), s.blocks, s.buffers) == (("i", "j", "k", "i_1", "j_1"), ("T", "Y"), ("T",))
    assert s.split("i_1", 4, tail="remainder") == ("i_1_o", "i_1_i", "i_1_r")
    assert s.trace[-1] == Step("split", ("i_1", 4, ("i_1_o", "i_1_i", "i_1_r"), Tail.REMAINDER))
    assert s.split("j", 3, tail="remainder") == ("j_o", "j_i")  # 3 divides 9
    assert s.split_parts("k", 2, ("a", "b")) == ("a", "b")
    assert s.loops("T") == ("i", "j_o", "j_i", "a", "b")
    assert s.cache_read("T", "A") == "A_copy"
    assert s.writers("A_copy") == ("A_copy_read",)
    assert s.writers("Y") == ("Y", "Y_2")
    assert s.peel("i", 1) == "i_2"
    assert s.cache_read("T", "B", "near", "memory") == "near"
    assert replay(CHAIN, s.trace) == s.func


def test_tile_returns_its_loops() -> None:
    s = Schedule(MATMUL)
    assert s.tile(("i", "j"), (4, 3)) == ("i_o", "j_o", "i_i", "j_i")
    s = Schedule(MATMUL)
    assert s.tile(["i", "j"], [4, 2], names=["a", "b", "c", "d"]) == ("a", "b", "c", "d")
    s = Schedule(MATMUL)
    assert s.tile(("i", "j"), (4, 2), tail=Tail.REMAINDER) == ("i_o", "j_o", "i_i", "j_i")
    assert replay(MATMUL, s.trace) == s.func


def test_arguments_are_normalised() -> None:
    by_method, by_name, positional = Schedule(CHAIN), Schedule(CHAIN), Schedule(CHAIN)
    by_method.set_scope("T", "memory")
    by_name.do("set_scope", scope=MemoryScope.MEMORY, buffer="T")
    positional.do("set_scope", "T", MemoryScope.MEMORY)
    assert by_method.trace == by_name.trace == positional.trace
    assert Step.of("reorder", ["i", "j"]) == Step.of("reorder", ("i", "j"))
    assert Step.of("split", "i", 4, None, "guard") == Step("split", ("i", 4))
    assert Step.of("peel", "i", "4 * 2") == Step("peel", ("i", 8))


def test_a_refused_step_changes_nothing() -> None:
    s = Schedule(MATMUL)
    with pytest.raises(ScheduleError):
        s.vectorize("i")
    with pytest.raises(ScheduleError):
        s.apply((Step.of("parallel", "i"), Step.of("vectorize", "i")))
    assert s.func is MATMUL
    assert s.trace == ()


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda: Step.of("skew", "i"), "there is no primitive 'skew'; there are bind, "),
        (lambda: Step.of("spilt", "i"), "; did you mean 'split'?"),
        (lambda: Step.of("split", "i"), "split, argument 'factor': it is missing; split takes loop, factor, "),
        (lambda: Step.of("split", "i", 4.0), "split, argument 'factor': expected an integer, got 4.0"),
        (lambda: Step.of("split", "i", True), "split, argument 'factor': expected an integer, got True"),
        (lambda: Step.of("split", 3, 4), "split, argument 'loop': expected a name, got 3"),
        (lambda: Step.of("split", "i", 4, factor=4), "split, argument 'factor': it is given twice"),
        (lambda: Step.of("split", "i", 4, fctor=4), "split, argument 'fctor': there is no such argument"),
        (lambda: Step.of("parallel", "i", 4), "parallel: expected at most 1 arguments, got 2; parallel takes loop"),
        (lambda: Step.of("split", "i", 4, tail="gard"), "expected one of guard, mask, remainder, shift_inwards, pad, "),
        (lambda: Step.of("reorder", "i"), "reorder, argument 'order': expected a list, got 'i'"),
        (lambda: Step.of("reorder", ("i", 3)), "argument 'order': expected a list, each value a name, got ('i', 3)"),
        (lambda: Step.of("peel", "i", "n +"), "peel, argument 'at': expected an expression ("),
        (lambda: Step.of("peel", "i", "n // 0"), "'at': expected an expression that does not divide by 0, got"),
        (lambda: Step.of("peel", "i", "4//0"), "'at': expected an expression that does not divide by 0, got"),
        (lambda: Step.of("peel", "i", "n % (2 - 2)"), "'at': expected an expression that does not divide by 0, got"),
        (lambda: Step.of("peel", "i", f"{10**30}"), "'at': expected an integer of at most 281474976710656, got"),
        (lambda: Step.of("peel", "i", "n < 3"), "argument 'at': expected an integer or an int64 expression without"),
        (lambda: Step.of("transform_layout", "T", {"shape": 3}), "'layout': expected a layout (shape: expected"),
    ],
)  # fmt: skip
def test_invalid_arguments(step: Callable[[], object], message: str) -> None:
    with pytest.raises(ScheduleError) as e:
        step()
    assert message in str(e.value)


def test_unknown_loop_suggests_a_similar_name() -> None:
    s = Schedule(MATMUL)
    s.split("i", 2)
    with pytest.raises(ScheduleError, match=r"^\[schedule\] matmul: there is no loop 'io'; .*; did you mean 'i_o'\?$"):
        s.parallel("io")


# Other sizes


def test_trace_for_512_replays_on_1024() -> None:
    s = gemm_schedule()
    larger = gemm(1024, 1024, 1024)
    after = replay(larger, s.trace)
    verify(after)
    by_hand = Schedule(larger)
    by_hand.apply(s.trace)
    assert by_hand.func == after
    assert "C_local: float32[1024, 1024]" in show(after)


@pytest.mark.parametrize("sizes", [(12, 20, 300), (7, 5, 257), (symbol("M", 1, 40), 33, 260), (8, 16, 300)])
def test_trace_preserves_semantics_on_other_sizes(sizes: tuple[Size, Size, Size]) -> None:
    func = gemm(*sizes)
    check_same(func, replay(func, gemm_schedule().trace))


def test_symbolic_size_resolves_to_the_symbol_of_its_name() -> None:
    s = Schedule(gemm(symbol("M", 8, 64), 6, 5))
    s.peel("i", Symbol("M", 8, 64) // 8 * 8 - 7)
    s.peel("j", "6 - 2")
    assert s.trace[0] == Step.of("peel", "i", "M // 8 * 8 - 7", "i_2")
    other = gemm(symbol("M", 16, 128), 6, 5)
    after = replay(other, s.trace)
    verify(after)
    assert after == replay(parse(show(other)), s.trace)


PEEL = "step 7, peel('k', 256, name='k_2'): peel of loop 'k'"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((512, 512, 64), f"{PEEL}: cut 256 is not proved to lie in 0..64"),
        ((512, 512, 256), f"{PEEL}: cut 256 of 0..256 leaves one part empty"),
        ((512, 512, symbol("K", 1, 512)), f"{PEEL}: cut 256 is not proved to "),
    ],
)
def test_error_names_the_step_illegal_for_other_sizes(sizes: tuple[Size, Size, Size], message: str) -> None:
    with pytest.raises(ScheduleError) as e:
        replay(gemm(*sizes), gemm_schedule().trace)
    assert message in str(e.value)


def test_error_names_the_layout_illegal_for_other_sizes() -> None:
    s = Schedule(gemm(32, 32, 32))
    s.cache_write("C")
    s.transform_layout("C_local", Layout.of((32, 32)).split(1, (2, 16)))
    with pytest.raises(ScheduleError, match=r"^\[schedule\] step 2, transform_layout\('C_local', .*expected factors"):
        replay(gemm(32, 64, 32), s.trace)


# The primitives' signatures


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_every_primitive_is_a_method_with_its_arguments(name: str) -> None:
    primitive, method = PRIMITIVES[name], getattr(Schedule, name)
    expected = list(inspect.signature(primitive).parameters.values())[1:]
    method_parameters = list(inspect.signature(method).parameters.values())[1:]
    assert [(p.name, p.default) for p in method_parameters] == [(p.name, p.default) for p in expected]
    place = f"{primitive.__module__.removeprefix('tilewright.')}.{name}"
    assert place in " ".join(method.__doc__.split()), f"the method's docstring names {place}"


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_every_argument_of_a_primitive_is_data(name: str) -> None:
    assert get_type_hints(PRIMITIVES[name])["return"] is Func
    for p in parameters(PRIMITIVES[name]).values():
        assert p.required or p.kind.read(p.kind.write(p.default)) == p.default
        assert p.kind.schema()


def test_expressions_keep_no_ranges() -> None:
    assert SizeKind().read(Symbol("M", 1, 512) * 2 + 1) is Var("M") * 2 + 1
    assert SizeKind().read("'batch size' + 1") is Var("batch size") + 1


@pytest.mark.parametrize("step", [
    Step.of("transform_layout", "T", Layout.of((Symbol("M", 1, 64), 9)).pad(1, 0, Symbol("q", 4, 4))),
    Step.of("transform_layout", "T", {"shape": ["M", 9], "symbols": {"M": [1, 64], "q": [3, 3]},
                                      "primitives": [["split", 1, ["q", 3]]]}),
    Step.of("cache_read", "Y", "T", layout=Layout.of((Symbol("M", 1, 64), 9)).pad(1, 0, Symbol("q", 0, 64))),
], ids=lambda s: s.primitive)  # fmt: skip
def test_layouts_with_unknown_symbols(step: Step) -> None:
    before = Schedule(CHAIN)
    message = f"{step.primitive}: the layout names 'q', which is not a symbol of func 'chain'; its symbols: M"
    with pytest.raises(ScheduleError, match=re.escape(message)):
        before.apply((step,))
    assert before.func is CHAIN
