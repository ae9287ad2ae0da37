"""Cost-based choice of convolution algorithms: direct sums, Winograd, and densified operands."""

from tilewright.driver.build import Build
from tilewright.driver.options import CompileOptions
from tilewright.errors import OptionError
from tilewright.graph.densify_operands import densify_operands
from tilewright.graph.program import Program
from tilewright.graph.winograd.rewrite import with_winograd
from tilewright.lower.abstract_sizes import implied_ranges
from tilewright.machine import Target
from tilewright.optimize.stage_cost import StageCost, is_faster, pick_fastest, stage_cost_oracle

WINOGRAD_TILES = (2, 4)
"""Winograd tile sizes to consider: m of F(m, r)."""

MAX_ERROR_GROWTH = {"safe": 8.0, "fast": 100.0}
"""Upper bound of the growth of rounding errors over the direct sum, per value of the option `winograd`. In two
dimensions the bound of F(2, 3) is 7.1 and its measured errors grow up to 2.4 times; F(4, 3) has 97 and 12."""

DIRECT = "direct"
"""Every convolution is the sum of its definition."""

DEFAULT_WINOGRAD = "safe"


def choose_conv_algorithm(options: CompileOptions, build: Build, has_layouts: bool) -> str:
    """The algorithm that convolutions may use: a key of `MAX_ERROR_GROWTH`, or `DIRECT`.

    It is `DIRECT` if the optimizer has no machine, as nothing estimates times then, and if layouts are planned, as a
    plan names values that Winograd replaces.

    Raises:
        OptionError: an option has no such value, or has no effect.
    """
    exact, winograd = options.exact, options.winograd
    if not isinstance(exact, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may have no types
        raise OptionError(f"expected True or False, got {exact!r}", where="argument 'exact'")
    if winograd is not None and winograd not in MAX_ERROR_GROWTH:
        raise OptionError(f"there is no {winograd!r}", where="winograd", hint=f"use {' or '.join(MAX_ERROR_GROWTH)}")
    if winograd is not None and (exact or has_layouts):
        reason = "exact allows no" if exact else "a plan of layouts excludes"
        what = f"{reason} fast convolutions, so {winograd!r} would have no effect"
        raise OptionError(what, where="winograd", hint="leave out one of the two")
    if winograd is not None and build.machine is None:
        what = f"the optimizer {build.optimizer.name!r} reads no description of a machine to estimate by"
        raise OptionError(what, where="winograd", hint="leave it out, or choose the optimizer gensor or roller")
    return DIRECT if exact or has_layouts or build.machine is None else winograd or DEFAULT_WINOGRAD


def make_stage_oracle(program: Program, build: Build, target: Target) -> StageCost | None:
    """Time estimates of a program's stages, shared by all choices of algorithms; None without a machine."""
    if build.machine is None:
        return None
    return stage_cost_oracle(target, build.machine.for_target(target), implied_ranges(program))


def select_winograd(program: Program, build: Build, oracle: StageCost | None) -> Program:
    """Rewrites convolutions to Winograd (minimal filtering) where the estimate is faster than the direct sum.

    Args:
        program: the lowered graph.
        build: the allowed algorithm.
        oracle: time estimates of stages; None leaves the program unchanged.
    """
    if oracle is None or build.convolutions == DIRECT:
        return program
    return with_winograd(
        program,
        WINOGRAD_TILES,
        pick_fastest(frozenset(program.constants), oracle),
        MAX_ERROR_GROWTH[build.convolutions],
    )


def select_dense_copies(program: Program, oracle: StageCost | None) -> Program:
    """Copies strided operands of contractions densely where the estimate is faster.

    Args:
        program: the lowered graph.
        oracle: time estimates of stages; None leaves the program unchanged.
    """
    if oracle is None:
        return program
    return densify_operands(program, is_faster(frozenset(program.constants), oracle))
