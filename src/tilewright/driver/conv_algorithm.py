"""How convolutions are computed: by minimal filtering where the user allows it and the cost model finds it faster, and
from a copy of their operand without gaps."""

from tilewright.driver.options import Build
from tilewright.errors import OptionError
from tilewright.graph.densify_operands import densify_operands
from tilewright.graph.program import Program
from tilewright.graph.winograd.rewrite import with_winograd
from tilewright.lower.abstract_sizes import implied_ranges
from tilewright.machine import Target
from tilewright.optimize.stage_cost import StageCost, is_faster, pick_fastest, stage_cost_oracle

WINOGRAD_TILES = (2, 4)
"""Sizes of tiles, m of F(m, r), that are considered."""

MAX_ERROR_GROWTH = {"safe": 8.0, "fast": 100.0}
"""By how much rounding errors may grow beyond those of the direct sum, as a bound, per value of the option. In two
dimensions F(2, 3) has 7.1 and errs up to 2.4 times as much, F(4, 3) has 97 and errs up to 12 times as much."""

DIRECT = "direct"
"""All sums are computed as they are defined."""

DEFAULT_WINOGRAD = "safe"


def choose_conv_algorithm(exact: bool, winograd: str | None, build: Build, has_layouts: bool) -> str:
    """What convolutions may be computed by: a key of `MAX_ERROR_GROWTH`, or `DIRECT`.

    An optimizer that reads no description of a machine has nothing to estimate by: all sums stay direct. So they do
    where layouts were planned (`placed`): a plan names values that fast convolutions would not have.

    Raises:
        OptionError: an option has no such value, or would have no effect.
    """
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
    """Estimates for a program's stages, which all decisions about it share; None without a machine to estimate by."""
    if build.machine is None:
        return None
    return stage_cost_oracle(target, build.machine.for_target(target), implied_ranges(program))


def select_winograd(program: Program, build: Build, oracle: StageCost | None) -> Program:
    """The program with minimal filtering where it is estimated to be faster than the direct sum.

    Args:
        program: as the graph was lowered.
        build: tells what is allowed.
        times: estimates of its stages; None leaves the program as it is.
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
    """The program where sums that skip elements of an operand read a copy without gaps if that is estimated to be
    faster.

    Args:
        program: as the graph was lowered.
        times: estimates of its stages; None leaves the program as it is.
    """
    if oracle is None:
        return program
    return densify_operands(program, is_faster(frozenset(program.constants), oracle))
