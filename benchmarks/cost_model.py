"""How well the cost model orders programs: predicted and measured times of programs of every kind of operator.

    python -m benchmarks.cost_model [--kinds NAME,...] [--cases NAME,...] [--populations NAME,...] [--programs 30]
                                    [--verbose] [--plot FILE]

Programs of one kernel come from two populations (`populations.py`), neither chosen by what was measured. Those drawn at
random from the whole space, every legal state of a form as likely as any other, are what a model is asked about while a
search begins: their correlation says whether it tells good programs from bad ones. Those that walks recorded, evenly
over the range of predicted times near the best one, are what it is asked about in the end: they differ by little, and
how well they are ordered also depends on how far from the best one they are drawn.

Programs run in turns on one thread; the fastest run of each counts, as a shared machine only ever adds time. The first
table has a line per kernel and population: the rank correlation (Spearman's) of prediction and measurement, the median
of measured over predicted, how far the slow programs are from the fast ones, and how the one that the model likes best
compares with the best of those drawn. Where memory is the limit all programs of a kernel may take the same time, so
that their order is what measurements err: "measured twice" is how well every other round ranks programs as the others
do; where that is low, a low correlation says nothing about the model. The second table therefore has, per kind and
population, the correlation over all programs of all kernels of the kind, which asks for the right times of different
sizes as well, the means of the kernels' own correlations and of their programs measured twice, and the mean of those
kernels whose programs can be told apart.
"""

import argparse
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

from benchmarks.common import plots, report
from benchmarks.common.statistics import rank_correlation
from benchmarks.operators.cases import Case, all_cases, gemm, memory_bound, sum_axes
from benchmarks.populations import POPULATIONS, lowered_func
from tilewright.driver.compile import make_compilation
from tilewright.driver.options import CompileOptions
from tilewright.loops.ir import Func, blocks
from tilewright.machine import Target
from tilewright.measure.function_timer import FunctionTimer
from tilewright.optimize.construct.optimizer import RankedProgram
from tilewright.optimize.task import Task

KINDS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("gemm_m512_k512_n512", "gemm_m128_k768_n768", "gemm_m37_k768_n2304", "gemm_m512_k512_n512_tab"),
    "small gemm": ("gemm_m64_k64_n64", "gemm_m1_k768_n3072", "gemm_m1_k2048_n1000", "gemm_m4096_k4096_n1",
                   "gemm_m4096_k1024_n4"),
    "convolution": ("conv_1x64x56x56_o64_k3_s1", "conv_1x256x14x14_o256_k3_s1", "conv_1x64x56x56_o256_k1_s1",
                    "conv_1x512x7x7_o512_k3_s1", "conv_1x128x56x56_o128_k3_s2", "conv_1x3x224x224_o64_k7_s2"),
    "depthwise": ("dw_1x144x56x56_o144_k3_s1", "dw_1x192x28x28_o192_k3_s1", "dw_1x192x28x28_o192_k3_s2",
                  "dw_1x960x7x7_o960_k3_s1"),
    "pooling": ("maxpool_1x64x112x112_k3_s2", "maxpool_1x256x56x56_k2_s2", "averagepool_1x512x28x28_k3_s1",
                "averagepool_1x128x56x56_k2_s2"),
    "row chain": ("softmax_12x128x128", "softmax_64x1000", "layernorm_128x768", "layernorm_512x1024"),
    "reduction": ("reducesum_rows_1024x1024", "reducesum_columns_1024x1024", "reducemean_256x56x56",
                  "globalaveragepool_2048x7x7", "reducesum_columns_128x768", "reducemean_tokens_8x196x768",
                  "reducesum_channels_64x56x56"),
    "transpose": ("transpose_0213_128x12x64", "transpose_nhwc_256x56x56", "transpose_1024x1024",
                  "transpose_1000x777"),
}  # fmt: skip
"""Kernels by kind, named as in `benchmarks.operators.cases` or below: those of other benchmarks, too."""

EXTRA_REDUCTIONS = (
    memory_bound("ReduceSum", (128, 768), (768,), "reducesum_columns_128x768", constants=sum_axes(0), keepdims=0),
    memory_bound(
        "ReduceMean", (8, 196, 768), (8, 768), "reducemean_tokens_8x196x768", constants=sum_axes(1), keepdims=0
    ),
    memory_bound(
        "ReduceSum", (1, 64, 56, 56), (1, 56, 56), "reducesum_channels_64x56x56", constants=sum_axes(1), keepdims=0
    ),
)
"""Sums over axes that are not the last: the operators' table has one, and in it alone programs differ."""

PRODUCTS_OF_FEW_TERMS = tuple(gemm("few_terms", *size) for size in ((1593, 5, 3042), (3900, 2, 1457), (30_000, 7, 150)))
"""Products whose results exceed L2: what their stores wait for decides."""

ALL_KINDS = {**KINDS, "products of few terms": tuple(c.name for c in PRODUCTS_OF_FEW_TERMS)}

ROUNDS, ROUND_SECONDS = 8, 0.003

HEADER = ("kind", "kernel", "population", "programs", "rank correlation", "measured twice", "measured / predicted",
          "slow / fast", "chosen / best")  # fmt: skip

KIND_HEADER = ("kind", "population", "kernels", "over all programs", "mean of kernels", "measured twice", "told apart",
               "mean of these")  # fmt: skip

MIN_SPREAD = 1.3
"""Kernels of which the programs at the ninth decile take at least so many times as long as those at the first one:
their programs can be told apart by measuring on a shared machine."""

DEFAULT_PROGRAMS = 30
"""Of a kernel and population."""


def main() -> None:
    """Measure and print."""
    options = _options()
    chosen = None if options.cases is None else options.cases.split(",")
    results: list[tuple[str, str, dict[str, Any]]] = []
    for kind in options.kinds.split(","):
        for name in ALL_KINDS[kind]:
            for population in options.populations.split(",") if chosen is None or name in chosen else ():
                result = compare_times(largest_kernel_task(name), options.programs, population)
                results.append((kind, name, result))
                print(" ".join(table_row(kind, name, result)), flush=True)
                if options.verbose:
                    each = sorted(zip(result["measured"], result["predicted"], result["names"], strict=True))
                    print("\n".join(f"{m / 1e3:10.1f} us, predicted {p / 1e3:10.1f}: {text}" for m, p, text in each))
    print(report.markdown_table(HEADER, [table_row(*x) for x in results]))
    print()
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for kind, _, result in results:
        groups.setdefault((kind, result["population"]), []).append(result)
    print(report.markdown_table(KIND_HEADER, [kind_table_row(*key, group) for key, group in groups.items()]))
    if options.plot is not None:
        kinds = dict.fromkeys(kind for kind, _ in groups)
        options.plot.write_text(scatter_plot({k: [x for kind, _, x in results if kind == k] for k in kinds}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(ALL_KINDS), help="kinds of operators, by comma")
    parser.add_argument("--cases", help="kernels, by comma, instead of all of the kinds")
    parser.add_argument("--populations", default=",".join(POPULATIONS), help="by comma")
    parser.add_argument("--programs", type=int, default=DEFAULT_PROGRAMS, help="of a kernel and population")
    parser.add_argument("--verbose", action="store_true", help="print every program")
    parser.add_argument("--plot", type=Path, help="write a picture of all programs into this SVG file")
    return parser.parse_args()


def largest_kernel_task(name: str) -> Task:
    """The kernel of a case that does most; convolutions as they are defined.

    Raises:
        ValueError: there is no such case.
    """
    cases: tuple[Case, ...] = (*all_cases(), *EXTRA_REDUCTIONS, *PRODUCTS_OF_FEW_TERMS)
    case = next((c for c in cases if c.name == name), None)
    if case is None:
        raise ValueError(f"there is no operator {name!r}")
    kernels = make_compilation(case.model(), CompileOptions(exact=True)).kernels
    most = max(kernels, key=lambda k: _iteration_count(k.origin))
    # the first parameter is fed, the last one is the result, what lies between are weights
    return Task(most.origin, frozenset(b.name for b in most.origin.inputs[1:]), Target.host(), most.fusion)


def _iteration_count(func: Func) -> int:
    """Iterations of a kernel's busiest block; its sizes are literal."""
    return max(prod(int(str(i.extent)) for i in b.iters) for b in blocks(func.body))


def compare_times(task: Task, count: int, population: str = "recorded") -> dict[str, Any]:
    """Predicted and measured nanoseconds of programs of one kernel.

    Args:
        task: the kernel.
        count: of programs.
        population: by which they are drawn.

    Returns:
        "population"; "predicted", "measured" and "names" by program; "correlation" of ranks, "ratio" of measured to
        predicted (its median), "spread": the ninth decile of measured times over the first one, "agreement":
        correlation of ranks of every other round with that of the others, "chosen": what the model likes best over the
        fastest.
    """
    drawn: list[RankedProgram] = POPULATIONS[population](task, count)
    funcs = {f"p{k}": lowered_func(p, task) for k, (_, p) in enumerate(drawn)}
    clock = FunctionTimer(funcs)
    rounds = [clock.fastest_calls(1, ROUND_SECONDS) for _ in range(ROUNDS)]
    once, again = ([min(r[n] for r in half) for n in funcs] for half in (rounds[::2], rounds[1::2]))
    measured, predicted = [min(pair) for pair in zip(once, again, strict=True)], [t for t, _ in drawn]
    deciles = quantiles(measured, n=10, method="inclusive") if len(measured) > 1 else [1.0, 1.0]
    return {
        "population": population, "predicted": predicted, "measured": measured, "names": [str(p) for _, p in drawn],
        "correlation": rank_correlation(measured, predicted),
        "ratio": median(m / p for m, p in zip(measured, predicted, strict=True)),
        "spread": deciles[-1] / deciles[0],
        "agreement": rank_correlation(once, again),
        "chosen": measured[predicted.index(min(predicted))] / min(measured),
    }  # fmt: skip


def table_row(kind: str, name: str, result: Mapping[str, Any]) -> list[str]:
    """One line of the table."""
    return [kind, name, result.get("population", "recorded"), str(len(result["measured"])),
            f"{result['correlation']:.2f}", f"{result['agreement']:.2f}", f"{result['ratio']:.2f}",
            f"{result['spread']:.1f}", f"{result['chosen']:.2f}"]  # fmt: skip


def kind_table_row(kind: str, population: str, results: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line of the table of kinds: the correlation over all their programs, and the mean ones of all kernels, of two
    measurements of theirs, and of those whose programs differ."""
    apart = [x["correlation"] for x in results if x["spread"] >= MIN_SPREAD]
    every, twice = (fmean(x[name] for x in results) for name in ("correlation", "agreement"))
    measured, predicted = [[t for x in results for t in x[name]] for name in ("measured", "predicted")]
    return [kind, population, str(len(results)), f"{rank_correlation(measured, predicted):.2f}", f"{every:.2f}",
            f"{twice:.2f}", str(len(apart)), f"{fmean(apart):.2f}" if apart else "-"]  # fmt: skip


def scatter_plot(kinds: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Predicted against measured microseconds of all programs, one colour per kind of operator."""
    groups = {
        kind: [(p / 1e3, m / 1e3) for x in found for p, m in zip(x["predicted"], x["measured"], strict=True)]
        for kind, found in kinds.items()
    }
    return plots.scatter("The cost model", "predicted microseconds", "measured microseconds", groups)


if __name__ == "__main__":
    main()
