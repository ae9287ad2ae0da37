"""Chains of convolutions: what is read of them, refusals with their reasons, tiles, and compiled models."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from tests.frontend.onnx_models import model
from tests.graph.chains.chain_models import partition_of
from tests.graph.chains.conv_models import inverted_residual, two_windows

import tilewright as tw
from tilewright.cost.trees.tree_model import TreeModel
from tilewright.driver.compile import make_compilation
from tilewright.driver.options import CompileOptions
from tilewright.errors import ScheduleError
from tilewright.graph.chains.find import Dataflow, KernelChain, Link
from tilewright.graph.chains.fuse import fused_kernel
from tilewright.graph.fusion import Fusion, FusionPattern
from tilewright.loops.ir import For, Func, LoopKind, blocks, walk
from tilewright.loops.lowering import lower_to_loops
from tilewright.machine import Target
from tilewright.machine.shipped import machine_named
from tilewright.optimize.chains.optimizer import ChainOptimizer
from tilewright.optimize.conv_chains.register_tile import contraction_tile
from tilewright.optimize.conv_chains.stages import ConvolutionChain, has_windows
from tilewright.optimize.conv_chains.tiling import CACHE_SHARE, ConvolutionTiling, LaneAxis, tile_bytes, tilings_of
from tilewright.optimize.conv_chains.tree import convolution_tree
from tilewright.optimize.task import Task
from tilewright.tile.lower_tree import lower_tree
from tilewright.tile.tree import Loop as TreeLoop
from tilewright.tile.tree import Pack, walk_tree
from tilewright.tile.tree_sizes import tree_sizes

MACHINE = machine_named("sapphire-rapids")


def loops_of(source: onnx.ModelProto, first: int = 0) -> Func:
    """The kernels of a model, from one on, as one function."""
    parts = partition_of(source)
    positions = tuple(range(first, len(parts.units)))
    link = Link(positions[0], positions[-1], frozenset(positions[1:-1]))
    kernel = fused_kernel(KernelChain((link,), positions), Dataflow(parts), parts.program)
    assert kernel is not None
    return lower_to_loops("chain", kernel.stages, kernel.params, ())


def test_stages_of_an_inverted_residual() -> None:
    chain = ConvolutionChain.of(loops_of(inverted_residual(stride=2)))
    assert [x.is_depthwise for x in chain.stages] == [False, True, False]
    assert [(x.stride, x.reach) for x in chain.stages] == [(1, 1), (2, 3), (1, 1)]
    assert [x.padding is not None for x in chain.stages] == [False, True, False]
    assert [len(x.elementwise) for x in chain.stages] == [1, 1, 1]


def test_products_and_attention_have_no_windows() -> None:
    source = model("c = MatMul(a, b) e = MatMul(c, d)", inputs="float[8, 8] a, float[8, 8] b, float[8, 8] d",
                   outputs="float[8, 8] e")  # fmt: skip
    assert not has_windows(loops_of(source))
    assert has_windows(loops_of(two_windows()))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (inverted_residual(tap="e"), "stored, expected the next computation alone to read them"),
        (inverted_residual(tap="d"), "stored, expected the next computation alone to read them"),
        (inverted_residual(channels=1), "expected"),
        (model("c0 = Conv<group = 2>(x, w) c = Relu(c0) y = Conv(c, v)",
               inputs="float[1, 4, 9, 9] x, float[4, 2, 3, 3] w, float[3, 4, 3, 3] v",
               outputs="float[1, 3, 5, 5] y"), "expected"),
        (model("c0 = Conv(x, w) c = Relu(c0) y = Conv(c, v)",
               inputs="float[1, 4, 9] x, float[5, 4, 3] w, float[3, 5, 3] v", outputs="float[1, 3, 5] y"),
         "expected [..., channels, rows, columns]"),
    ],
)  # fmt: skip
def test_other_forms_are_refused_with_a_reason(source: onnx.ModelProto, reason: str) -> None:
    with pytest.raises(ScheduleError) as error:
        ConvolutionChain.of(loops_of(source))
    assert reason in error.value.what


def test_rows_shorter_than_a_vector_are_refused_where_vectors_run_along_columns() -> None:
    chain = ConvolutionChain.of(loops_of(inverted_residual(), first=1))
    with pytest.raises(ScheduleError, match="rows of 14 elements are shorter than a vector of 16"):
        tilings_of(chain, 16, MACHINE)
    assert {x.lanes for x in tilings_of(chain, 8, MACHINE)} == {LaneAxis.COLUMNS}


def test_tiles_fit_the_private_cache() -> None:
    chain = ConvolutionChain.of(loops_of(inverted_residual(size=56, channels=24, wide=144)))
    tilings = tilings_of(chain, 16, MACHINE)
    assert all(tile_bytes(chain, x) <= CACHE_SHARE * MACHINE.levels[1].bytes for x in tilings)
    assert {x.channels for x in tilings} == {0, 16, 48}
    # a row of 56 and 6 padded ones, 48 channels at a time; then 4 rows of 56 of all 144 channels, and of 24
    assert tile_bytes(chain, next(x for x in tilings if (x.rows, x.channels) == (4, 48))) == 4 * (
        56 * 48 + 6 * 58 * 48 + 4 * 56 * 144 + 4 * 56 * 24
    )
    small = replace(MACHINE, levels=(MACHINE.levels[0], replace(MACHINE.levels[1], bytes=1 << 12), *MACHINE.levels[2:]))
    (smallest,) = tilings_of(chain, 16, small)
    assert (smallest.rows, smallest.channels) == (2, 16)


def test_register_tiles_fit_the_registers_and_hide_the_latency() -> None:
    for points, lanes in ((56, 48), (28, 32), (7, 16), (112, 96), (9, 24)):
        tile = contraction_tile(points, lanes, 24, True, 16, MACHINE)
        vectors = -(-tile.lanes // 16)
        assert lanes % tile.lanes == 0
        assert (tile.points + 1) * vectors + 1 <= MACHINE.vector_registers
        assert tile.points * vectors >= min(points, MACHINE.fma_pipes * MACHINE.fma_cycles)


@pytest.mark.parametrize(("size", "channels", "chosen"), [(56, 24, True), (7, 160, False)])
def test_large_images_are_fused_and_small_ones_are_not(size: int, channels: int, chosen: bool) -> None:
    source = inverted_residual(size=size, channels=channels, wide=6 * channels)
    options = CompileOptions(machine="sapphire-rapids", target="x86-64-v4")
    compilation = make_compilation(source, options)
    whole = next(x for x in compilation.chains if len(x.evaluation.contractions) == 3)
    assert whole.evaluation.chosen == chosen
    assert whole.evaluation.before is not None
    assert whole.evaluation.after is not None
    if not chosen:
        assert whole.evaluation.reason in ("it is not faster", "it gains less than 10.0%")


def test_the_lowered_loops_of_a_chain_are_kept() -> None:
    func = loops_of(inverted_residual(size=56, channels=24, wide=144))
    task = Task(func, frozenset(), Target.parse("x86-64-v4"), Fusion(FusionPattern.CHAIN, 0, ()))
    optimizer = ChainOptimizer(machine=MACHINE)
    construction = optimizer.construct(task)
    assert construction.schedule is not None
    assert construction.schedule.trace == lower_tree(construction.programs[0].tree, task.func).trace
    scheduled, again = (optimizer.schedule_programs(construction, task) for _ in range(2))
    assert scheduled is not None
    assert again is not None
    (schedule,), (other,) = scheduled.schedules, again.schedules
    assert schedule.func is other.func is construction.schedule.func
    schedule.split(schedule.loops(blocks(schedule.func.body)[0].name)[0], 2)
    assert schedule.func != other.func == construction.schedule.func
    alone = optimizer.schedule_programs(construction, task.with_threads(1))
    assert alone is not None
    assert not any(isinstance(s, For) and s.kind is LoopKind.PARALLEL for s, _ in walk(alone.schedules[0].func.body))


@pytest.mark.parametrize("source", [inverted_residual(size=56, channels=24, wide=144), two_windows(size=64)])
def test_compiled_models_compute_the_same_with_and_without_fusion(source: onnx.ModelProto) -> None:
    shape = [d.dim_value for d in source.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    fused, unfused = (tw.compile(source, fusion=f)(x=x) for f in ("mcfuser", "unfused"))
    for a, b in zip(np.atleast_1d(fused), np.atleast_1d(unfused), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())


def test_the_padding_of_a_block_of_channels_is_no_register_tile() -> None:
    """A row is padded vector by vector: its loops are those of a few instructions, in however many channels."""
    func = loops_of(inverted_residual(size=28, wide=96))
    chain = ConvolutionChain.of(func)
    constants = frozenset(x.name for x in func.params[1:] if x not in func.outputs)
    for channels in (16, 48):
        tree = convolution_tree(chain, ConvolutionTiling(7, channels, LaneAxis.CHANNELS), 16, MACHINE)
        model = TreeModel.of(tree, func, MACHINE, constants)
        assert model is not None
        parts = {x.name: x for x in model.breakdown(np.array([tree_sizes(tree)], np.int64)).parts}
        assert chain.stages[1].padding is not None
        padding = parts[chain.stages[1].padding[0]]
        assert padding.counts["vector_operations"] == channels / 16
        assert padding.slowdown == pytest.approx(1.0, abs=0.01)


def test_copies_of_constant_weights_take_no_time() -> None:
    """They are made when the model is compiled; those of weights that are inputs run at every call."""
    func = loops_of(inverted_residual(size=7, channels=160, wide=960))
    chain = ConvolutionChain.of(func)
    constants = frozenset(x.name for x in func.params[1:] if x not in func.outputs)
    tree = convolution_tree(chain, ConvolutionTiling(7, 48, LaneAxis.CHANNELS), 16, MACHINE)
    depthwise = next(x.name for x in chain.stages if x.is_depthwise)
    for is_constant in (True, False):
        model = TreeModel.of(tree, func, MACHINE, constants if is_constant else frozenset())
        assert model is not None
        breakdown = model.breakdown(np.array([tree_sizes(tree)], np.int64))
        copies = {x.name for x in breakdown.parts if x.name.endswith(".weights")}
        assert copies == (set() if is_constant else {f"{depthwise}.weights"})
        assert (breakdown.packing > 0) != is_constant


@pytest.mark.parametrize(
    ("size", "rows", "hinted"),
    [(7, 7, True), (14, 4, True), (28, 28, False)],
    ids=["few register tiles per panel", "columns that do not divide", "many register tiles per panel"],
)
def test_weights_are_prefetched_where_few_register_tiles_share_a_panel(size: int, rows: int, hinted: bool) -> None:
    """The first register tile finds a panel beyond L2, where all of them pay for the hints."""
    chain = ConvolutionChain.of(loops_of(inverted_residual(size=size, channels=32, wide=96)))
    tree = convolution_tree(chain, ConvolutionTiling(rows, 48, LaneAxis.CHANNELS), 16, MACHINE)
    hints = {p.source for x, _ in walk_tree(tree.body) if isinstance(x, TreeLoop) for p in x.prefetches}
    first, _, last = (x.name for x in chain.stages)
    assert hints == ({f"{first}.weights", f"{last}.weights"} if hinted else set[str]())


def test_weights_of_windows_are_in_rows_of_all_channels() -> None:
    """Their terms would not be contiguous in panels, nor would a prefetch fetch the next ones."""
    chain = ConvolutionChain.of(loops_of(two_windows()))
    tree = convolution_tree(chain, ConvolutionTiling(4, 0, LaneAxis.CHANNELS), 16, MACHINE)
    assert not any(isinstance(x, Pack) for x in tree.staging)
    assert not any(x.prefetches for x, _ in walk_tree(tree.body) if isinstance(x, TreeLoop))


@pytest.mark.parametrize(("wide", "block"), [(96, 48), (192, 64), (144, 0), (112, 0), (60, 0), (100, 0)])
def test_panels_of_weights_are_as_wide_as_register_tiles(wide: int, block: int) -> None:
    """A register tile that lay in two panels would read shorter vectors."""
    chain = ConvolutionChain.of(loops_of(inverted_residual(size=14, channels=24, wide=wide)))
    tree = convolution_tree(chain, ConvolutionTiling(7, block, LaneAxis.CHANNELS), 16, MACHINE)
    widths = {x.statement: x.width for x in tree.staging if isinstance(x, Pack)}
    first, _, last = chain.stages
    assert set(widths) == {first.name, last.name}
    for stage in (first, last):
        steps = [x.step for x, _ in walk_tree(tree.body) if isinstance(x, TreeLoop) and x.axis == stage.axes.channels]
        assert widths[stage.name] in steps or widths[stage.name] == chain.points(stage.axes.channels)
    assert block % widths[first.name] == 0
