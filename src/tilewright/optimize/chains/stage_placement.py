"""Where the statements of a fused chain are computed: the loops over tiles around each of them.

A statement is computed in the rightmost loop, in the order of the tiling expression, over one of its axes (MCFuser,
section III-A). Loops of a single iteration are left out, so that it moves further outside. What reads the result of a
sum comes after the loop over its axis.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tilewright.errors import ScheduleError
from tilewright.optimize.chains.expression import (
    ChainTiling,
    Path,
    TilingExpression,
    axes_of,
    loop_paths,
    nested,
    statement_path,
    without_loops,
)
from tilewright.optimize.chains.stages import PLACE, ChainStage, ChainStages, StageKind
from tilewright.tile.tree import Node


def live_loops(tiling: ChainTiling, chain: ChainStages) -> TilingExpression:
    """The loops of a tiling that have several iterations, without those over batches and heads, which enclose all
    others; and the loop over tiles of rows, and those over an axis along which rows are reduced: sums are online there
    in a single tile, too, as that keeps less of a row and divides only the sums."""
    tiles = dict(tiling.tiles)
    reduced = {a for s in chain.stages if s.kind is StageKind.ROW_REDUCTION for a in s.reduced}

    def is_live(axis: str) -> bool:
        points = chain.points(axis)
        is_kept = axis == chain.row or (axis in reduced and points != 1)
        return axis not in chain.outer and (is_kept or points is None or tiles.get(axis, points) < points)

    axes = axes_of(tiling.expression)
    live = without_loops(tiling.expression, [a for a in axes if not is_live(a)])
    return live if chain.row in axes else nested((chain.row,), *live)


class OnlineRole(StrEnum):
    """What a stage is in a loop over tiles of an axis along which rows are reduced (online softmax)."""

    VALUE = "value"
    """It reads the running maximum; sums read it."""

    SUM = "sum"
    """It adds values up, and is rescaled whenever the maximum changes."""

    INLINED = "inlined"
    """It multiplies values by what is complete only after the loop: part of a sum that reads it."""


def online_roles(loops: TilingExpression, chain: ChainStages) -> Mapping[str, OnlineRole]:
    """The stages that run in the loop over a reduction whose running result they read, by name: none where no reduced
    axis of rows is tiled."""
    live = set(axes_of(loops))
    roles: dict[str, OnlineRole] = {}
    for extremum in chain.stages:
        tiled = [a for a in extremum.reduced if a in live]
        if tiled and extremum.kind is StageKind.ROW_REDUCTION and extremum.combined[0] in ("max", "min"):
            roles |= _roles_after(extremum, tiled[0], chain)
    return roles


def _roles_after(extremum: ChainStage, axis: str, chain: ChainStages) -> Mapping[str, OnlineRole]:
    """The roles of the stages that depend on the running maximum along an axis."""
    roles: dict[str, OnlineRole] = {}
    for stage in chain.stages:
        running = {extremum.name, *roles}.intersection(stage.reads)
        if not running:
            continue
        if axis in stage.reduced:
            roles[stage.name] = OnlineRole.SUM
        elif axis in stage.axes:
            is_value = running == {extremum.name}
            roles[stage.name] = OnlineRole.VALUE if is_value else OnlineRole.INLINED
        elif any(axis in reader.axes for reader in chain.readers(stage.name)):
            roles[stage.name] = OnlineRole.INLINED
    return roles


def stage_paths(loops: TilingExpression, chain: ChainStages, roles: Mapping[str, OnlineRole]) -> Mapping[str, Path]:
    """The loops around every stage of a chain, by its name.

    Args:
        loops: those with several iterations.
        chain: the chain.
        roles: of the stages that read running results.

    Raises:
        ScheduleError: a stage would read results that are not complete, or have loops that do not enclose each other.
    """
    around, live = loop_paths(loops), set(axes_of(loops))
    paths: dict[str, Path] = {}
    closed: dict[str, frozenset[str]] = {}
    for stage in chain.stages:
        needs_all = frozenset(a for name in stage.reads for a in closed[name] | (set(chain.stage(name).reduced) & live))
        role = roles.get(stage.name)
        closed[stage.name] = needs_all if role is None else needs_all - set(stage.axes)
        late = sorted(closed[stage.name] & set(stage.axes))
        if late:
            reads = " and ".join(sorted(map(repr, stage.reads)))
            what = f"{stage.name!r} runs along {late[0]!r} and reads {reads}, which needs all of that axis"
            raise ScheduleError(what, where=PLACE, hint=f"make one tile of {late[0]!r}")
        path = statement_path(stage.axes, around)
        until = next((k for k, axis in enumerate(path) if axis in closed[stage.name]), len(path))
        if role is not None:
            # in the loop over the maximum's axis itself
            until = next((k + 1 for k, axis in enumerate(path) if axis in needs_all), until)
            _check_online_loops(chain, stage, path[:until])
        paths[stage.name] = path[:until]
        missing = sorted((set(stage.reduced) & live).difference(path[:until]))
        if missing:
            what = f"the loop over {missing[0]!r} does not enclose {stage.name!r}, which sums along it"
            raise ScheduleError(what, where=PLACE, hint="nest the loops over its axes")
    return paths


def _check_online_loops(chain: ChainStages, stage: ChainStage, path: Path) -> None:
    """Checks that the loops around an online sum are over axes of the maximum that it reads, whose loops it shares."""
    extrema = [chain.stage(x) for x in stage.reads if chain.stage(x).kind is StageKind.ROW_REDUCTION]
    for axis in path:
        if extrema and axis not in extrema[0].axes:
            what = f"{extrema[0].name!r} would be computed in the loop over {axis!r} for {stage.name!r}"
            raise ScheduleError(what, where=PLACE, hint=f"make one tile of {axis!r}, or of the axis that it reduces")


@dataclass(frozen=True, slots=True)
class PlacedNest:
    """The loops of a statement with their place.

    Attributes:
        order: the position of the statement in the order of execution.
        path: the loops over tiles around it.
        statement: its name.
        nodes: its loops.
    """

    order: float
    path: Path
    statement: str
    nodes: tuple[Node, ...]


def scope_items(placed: Sequence[PlacedNest], depth: int) -> list[tuple[str | None, list[PlacedNest]]]:
    """What is executed in a scope, in this order: statements (without a loop), and loops, by their axes, with those
    inside.

    Args:
        placed: the statements of the scope.
        depth: the number of loops around the scope.

    Raises:
        ScheduleError: a loop would have to be executed before and after other statements.
    """
    items: list[tuple[str | None, list[PlacedNest]]] = []
    for x in sorted(placed, key=lambda p: p.order):
        axis = x.path[depth] if len(x.path) > depth else None
        if axis is not None and items and items[-1][0] == axis:
            items[-1][1].append(x)
        elif axis is not None and any(other == axis for other, _ in items):
            between = items[-1][1][-1].statement
            what = f"{between!r} is outside of the loop over {axis!r}, between statements inside of it"
            raise ScheduleError(what, where=PLACE)
        else:
            items.append((axis, [x]))
    return items
