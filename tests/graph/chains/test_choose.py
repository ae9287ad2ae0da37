"""The choice of chains by estimated times, against made-up estimates."""

import logging
from collections.abc import Callable, Sequence

import pytest
from tests.frontend.onnx_models import model
from tests.graph.chains.chain_models import attention, partition_of, two_products
from tests.graph.test_slice_kernels import attention as heads

from tilewright.graph.chains.choose import ChainEvaluation, KernelEstimate, choose_chains
from tilewright.graph.fusion import FusionPattern
from tilewright.graph.kernel import Kernel
from tilewright.graph.partition import Partition, Unit
from tilewright.graph.slice_kernels import slice_kernels
from tilewright.machine.shipped import machine_named

MACHINE = machine_named("x86-64-v4")

Estimate = Callable[[Kernel], float | None]


def chosen(
    parts: Partition, estimate: Estimate, cache_bytes: int = 1 << 40
) -> tuple[Partition, tuple[ChainEvaluation, ...], list[Kernel]]:
    """The choice, and the kernels that were estimated for it."""
    asked: list[Kernel] = []

    def estimate_kernel(kernel: Kernel, constants: frozenset[str]) -> KernelEstimate:
        assert constants == frozenset(parts.program.constants)
        asked.append(kernel)
        time = estimate(kernel)
        return KernelEstimate(time, "" if time is not None else "no tiling fits")

    def slice_units(units: Sequence[Unit]) -> tuple[Unit, ...]:
        return slice_kernels(units, parts.program, cache_bytes)

    return *choose_chains(parts, MACHINE, estimate_kernel, slice_units), asked


def is_fused(kernel: Kernel) -> bool:
    return kernel.fusion.pattern is FusionPattern.CHAIN


def fused_takes(time: float | None) -> Estimate:
    """100 ns for every kernel of the partition, and a time for fused ones."""
    return lambda kernel: time if is_fused(kernel) else 100.0


@pytest.mark.parametrize(
    ("time", "reason"),
    [
        (194.0, "the intermediates stay in fast memory"),
        (195.0, "it gains less than 3.0%"),
        (200.0, "it is not faster"),
        (None, "no tiling fits"),
    ],
)
def test_two_products_are_fused_where_that_is_estimated_to_be_faster(time: float | None, reason: str) -> None:
    parts = partition_of(two_products())
    result, (evaluation,), _ = chosen(parts, fused_takes(time))
    is_chosen = time == 194.0
    assert (evaluation.before, evaluation.after, evaluation.chosen) == (200.0, time, is_chosen)
    assert evaluation.reason == reason
    assert evaluation.contractions == ("n0 (MatMul) + n1 (Relu)", "n2 (MatMul)")
    assert (result is parts) == (not is_chosen)
    assert [is_fused(u) for u in result.units if isinstance(u, Kernel)] == ([True] if is_chosen else [False, False])


@pytest.mark.parametrize(("min_gain", "reason"), [(0.05, "the intermediates stay in fast memory"),
                                                  (0.1, "it gains less than 10.0%")])  # fmt: skip
def test_an_inexact_estimate_must_gain_more(min_gain: float, reason: str) -> None:
    def estimate(kernel: Kernel, constants: frozenset[str]) -> KernelEstimate:
        return KernelEstimate(182.0, min_gain=min_gain) if is_fused(kernel) else KernelEstimate(100.0)

    parts = partition_of(two_products())
    _, (evaluation,) = choose_chains(parts, MACHINE, estimate, tuple)
    assert evaluation.reason == reason


def test_without_an_estimate_of_the_kernels_nothing_is_fused() -> None:
    parts = partition_of(two_products())
    result, (evaluation,), _ = chosen(parts, lambda kernel: 1.0 if is_fused(kernel) else None)
    assert result is parts
    assert evaluation.reason == "a kernel that it replaces has no estimate: no tiling fits"


def test_links_without_a_possible_gain_are_not_estimated() -> None:
    # 4 * 4096 / 8 FLOPs per byte
    parts = partition_of(two_products(m=64, k=4096, n=64, h=4096))
    result, (evaluation,), asked = chosen(parts, fused_takes(1.0))
    assert result is parts
    assert not asked
    (intensity,) = evaluation.intensities
    assert (intensity.flops, intensity.bytes) == (2 * 2 * 64 * 64 * 4096, 2 * 4 * 64 * 64)
    assert evaluation.reason == (
        "compute-bound: 2048 FLOPs per byte of intermediates where the machine has 25.6, so fusion saves at most 1.2%"
    )


def test_empty_products_are_not_estimated() -> None:
    parts = partition_of(two_products("N"), {"N": 0})
    result, (evaluation,), asked = chosen(parts, fused_takes(1.0))
    assert result is parts
    assert not asked
    assert evaluation.reason == "it has no work"


def test_traffic_that_others_cause_as_well_is_not_counted() -> None:
    body = "c = MatMul(a, b) e = MatMul(c, d) z = Exp(c)"
    source = model(
        body, inputs="float[20, 8] a, float[8, 24] b, float[24, 6] d", outputs="float[20, 6] e, float[20, 24] z"
    )
    _, (evaluation,), _ = chosen(partition_of(source), fused_takes(1.0))
    assert evaluation.intensities[0].bytes == 4 * 20 * 24


def four_products() -> Partition:
    body = "c = MatMul(x, a) d = MatMul(c, a) e = MatMul(d, a) y = MatMul(e, a)"
    return partition_of(model(body, inputs="float[20, 8] x, float[8, 8] a", outputs="float[20, 8] y"))


def test_the_parts_of_a_long_chain_compete() -> None:
    parts = four_products()

    def estimate(kernel: Kernel) -> float:
        # a fused pair takes 150, longer ones as long as their kernels
        return 150.0 if len(kernel.stages) == 2 else 100.0 * len(kernel.stages)

    result, evaluations, _ = chosen(parts, estimate)
    assert [len(u.stages) for u in result.units if isinstance(u, Kernel)] == [2, 2]
    assert len(evaluations) == 6
    middle = next(x for x in evaluations if x.contractions == ("n1 (MatMul)", "n2 (MatMul)"))
    assert middle.reason == "n0 (MatMul) -> n1 (MatMul) saves more"

    whole, _, _ = chosen(parts, lambda kernel: 100.0)
    assert [len(u.stages) for u in whole.units if isinstance(u, Kernel)] == [4]


def test_equal_chains_are_estimated_once() -> None:
    body = "".join(f"c{k} = MatMul(x{k}, a) r{k} = Relu(c{k}) y{k} = MatMul(r{k}, b) " for k in range(3))
    inputs = "float[8, 24] a, float[24, 8] b, " + ", ".join(f"float[20, 8] x{k}" for k in range(3))
    parts = partition_of(model(body, inputs=inputs, outputs=", ".join(f"float[20, 8] y{k}" for k in range(3))))
    result, evaluations, asked = chosen(parts, fused_takes(1.0))
    assert sum(map(is_fused, asked)) == 1
    assert len(asked) == 3
    assert [x.chosen for x in evaluations] == [True] * 3
    assert len(result.units) == 3


def test_transposes_stay_outside_where_the_chain_has_no_estimate_with_them() -> None:
    parts = partition_of(attention())

    def estimate(kernel: Kernel) -> float | None:
        if not is_fused(kernel):
            return 100.0
        # with the transposes, batch and heads are not next to each other
        return None if len(kernel.params[0].shape) == 4 else 1.0

    _, (evaluation,), _ = chosen(parts, estimate)
    assert evaluation.chosen
    assert not any("Transpose" in label for label in evaluation.kernels)


def test_sliced_kernels_count_as_slices() -> None:
    parts = partition_of(heads(6, 200, 16, 220, 16))

    def estimate(kernel: Kernel) -> float:
        return 500.0 if is_fused(kernel) else 100.0 if kernel.slices is None else 10.0

    _, (whole,), _ = chosen(parts, estimate)
    assert whole.before == 300.0
    _, (sliced,), _ = chosen(parts, estimate, cache_bytes=500 << 10)
    # three kernels of six slices each
    assert sliced.before == 180.0


def test_evaluations_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tilewright.chains"):
        chosen(partition_of(two_products()), fused_takes(1.0))
    assert caplog.messages == [
        "n0 (MatMul) + n1 (Relu) -> n2 (MatMul): 0.2 us -> 0.0 us, fused: the intermediates stay in fast memory"
    ]


def test_chains_that_wait_for_each_other_are_not_both_fused() -> None:
    """x: a0 -> a1, y: b0 -> b1, where b1 needs a0 and a1 needs b0: fused, each of the two would need the other one."""
    body = """
        a0 = MatMul(x, w) b0 = MatMul(y, w) ar = Relu(a0) br = Relu(b0)
        a1 = MatMul(ar, w) b1 = MatMul(br, w) as = Softmax(a1) bs = Softmax(b1)
        az = Add(as, br) bz = Add(bs, ar) a2 = MatMul(az, w) b2 = MatMul(bz, w)"""
    source = model(
        body, inputs="float[20, 8] x, float[20, 8] y, float[8, 8] w", outputs="float[20, 8] a2, float[20, 8] b2"
    )
    parts = partition_of(source)
    result, evaluations, _ = chosen(parts, fused_takes(1.0))
    assert any(x.chosen for x in evaluations)
    written = set[str]()
    for u in result.units:
        read = u.reads if isinstance(u, Kernel) else u.inputs
        assert all(b.name in written or b in parts.program.inputs for b in read)
        written |= {b.name for b in (u.writes if isinstance(u, Kernel) else (u.output,))}  # type: ignore[union-attr]


def stored_operand(columns: int) -> Partition:
    """A product of an operand that is an output, too, with a matrix of so many columns."""
    body, inputs = "r = Exp(x) y = MatMul(r, w)", f"float[64, 200] x, float[200, {columns}] w"
    return partition_of(model(body, inputs=inputs, outputs=f"float[64, {columns}] y, float[64, 200] r"))


@pytest.mark.parametrize("time", [194.0, 195.0])
def test_a_stored_operand_and_its_product_are_fused_where_that_is_estimated_to_be_faster(time: float) -> None:
    result, (evaluation,), asked = chosen(stored_operand(1), lambda kernel: time if len(kernel.outputs) > 1 else 100.0)
    assert (evaluation.before, evaluation.after, evaluation.chosen) == (200.0, time, time == 194.0)
    (intensity,) = evaluation.intensities
    assert (intensity.flops, intensity.bytes) == (2 * 64 * 200, 4 * 64 * 200)
    assert [len(k.outputs) for k in asked] == [2, 1, 1]
    assert len(result.units) == (1 if time == 194.0 else 2)


def test_a_stored_operand_of_a_product_that_computes_much_is_not_considered() -> None:
    parts = stored_operand(2000)
    result, evaluations, asked = chosen(parts, lambda kernel: 1.0)
    assert (result, evaluations, asked) == (parts, (), [])
