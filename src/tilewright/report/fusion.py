"""Report of fused chains: which were considered, the times with and without, what pruning left, the loops."""

from collections.abc import Iterator
from typing import Any

from tilewright.driver.build import UNFUSED
from tilewright.driver.compilation import Compilation, ConsideredChain
from tilewright.errors import OptionError, pluralize
from tilewright.graph.chains.intensity import machine_balance
from tilewright.optimize.chains.expression import ChainTiling, expression_text
from tilewright.optimize.chains.optimizer import ChainCandidate, ChainConstruction
from tilewright.optimize.conv_chains.tiling import ConvolutionTiling
from tilewright.optimize.task import Task
from tilewright.report.tree_svg import TreePicture, draw_trees
from tilewright.tile.statements import extents_by_axis, statements_of
from tilewright.tile.tree_text import show_tree


def text(compilation: Compilation) -> str:
    """Every chain that was considered, by the user's names of its nodes. Loops and pruning of equal chains are shown
    once."""
    if not compilation.chains:
        return f"no chains were considered: {_why_none(compilation)}"
    shown: dict[str, int] = {}
    lines: list[str] = []
    for k, chain in enumerate(compilation.chains, 1):
        lines += [f"chain {k}: {' -> '.join(chain.evaluation.contractions)}"]
        lines += [f"  {line}" for line in _chain_lines(chain, compilation)]
        if chain.construction is None or chain.task is None:
            continue
        first = shown.setdefault(chain.task.hash, k)
        details = _construction_lines(chain.construction, chain.task) if first == k else [f"loops    as chain {first}"]
        lines += [f"  {line}" for line in details]
    return "\n".join(lines)


def _why_none(compilation: Compilation) -> str:
    build = compilation.build
    if build.fusion != UNFUSED:
        return "no contraction reads another one"
    if build.machine is None:
        return f"the optimizer {build.optimizer.name} reads no description of a machine to estimate by"
    return "a plan of layouts excludes fusion" if compilation.layout_plan.choices else "fusion is off"


def _chain_lines(chain: ConsideredChain, compilation: Compilation) -> Iterator[str]:
    evaluation = chain.evaluation
    balance = machine_balance(compilation.build.machine_for(compilation.target))
    ratios = ", ".join(f"{x.flops_per_byte:.1f}" for x in evaluation.intensities)
    yield f"verdict  {'fused' if evaluation.chosen else 'not fused'}: {evaluation.reason}"
    count = pluralize(len(evaluation.kernels), "kernel")
    yield f"time     {_time_text(evaluation.before)} in {count}, {_time_text(evaluation.after)} in one"
    yield f"work     {ratios} FLOPs per byte of intermediates, P/W of the machine is {balance:.1f}"
    yield f"replaces {'; '.join(evaluation.kernels)}"


def _time_text(nanoseconds: float | None) -> str:
    return "unknown" if nanoseconds is None else f"{nanoseconds / 1e3:.1f} us"


def _construction_lines(construction: ChainConstruction, task: Task) -> Iterator[str]:
    """The space, what every rule left of it, and the best program."""
    if construction.counts is not None:
        expressions, sizes = construction.counts.expressions, construction.counts.sizes
        left = ", ".join(f"{what} {count:,}" for what, count in construction.counts.waterfall)
        yield f"space    {left}"
        yield f"         {expressions[0]} expressions x {sizes[0]:,} tile sizes; {construction.estimated} estimated"
    if construction.programs:
        best = construction.programs[0]
        yield from (f"axes     {line}" for line in _axes_lines(task))
        yield f"tiling   {_tiling_text(best)}"
        yield "tree"
        yield from (f"  {line}" for line in show_tree(best.tree).splitlines())


def _axes_lines(task: Task) -> Iterator[str]:
    """The axes of every computation: of its results, then those that it reduces."""
    for statement in statements_of(task.func).values():
        axes = [a.axis for a in statement.axes if not a.is_reduction]
        reduced = [a.axis for a in statement.axes if a.is_reduction]
        yield f"{statement.block}: {' '.join(axes)}{' reduce ' if reduced else ''}{' '.join(reduced)}"


def _tiling_text(program: ChainCandidate) -> str:
    tiling = program.tiling
    if isinstance(tiling, ConvolutionTiling):
        channels = f"{tiling.channels} channels" if tiling.channels else "all channels"
        return f"{pluralize(tiling.rows, 'row')} and {channels} at a time; vectors along {tiling.lanes}"
    tiles = ", ".join(f"{axis} {points}" for axis, points in tiling.tiles)
    return f"{expression_text(tiling.expression)}; {tiles}"


def picture(compilation: Compilation) -> str:
    """The trees of all chains that have one, chosen or not, as an SVG document; those of equal chains once.

    Raises:
        OptionError: no chain has a tree.
    """
    pictures: dict[str, TreePicture] = {}
    for k, chain in enumerate(compilation.chains, 1):
        if chain.construction is None or chain.task is None or not chain.construction.programs:
            continue
        evaluation, best = chain.evaluation, chain.construction.programs[0]
        title = f"chain {k}: {' -> '.join(evaluation.contractions)}"
        notes = tuple(_chain_lines(chain, compilation))[:2]
        tiling = f"tiling   {_tiling_text(best)}"
        extents = {a: str(n) for a, n in extents_by_axis(chain.task.func).items()}
        pictures.setdefault(chain.task.hash, TreePicture(title, (*notes, tiling), best.tree, extents))
    if not pictures:
        what = _why_none(compilation) if not compilation.chains else "no chain of this model has a program"
        raise OptionError(f"there is no tree to draw: {what}", where="--svg", hint="--fusion without it says more")
    return draw_trees(tuple(pictures.values()))


def data(compilation: Compilation) -> list[dict[str, Any]]:
    """Every chain that was considered, for `--json`; times in nanoseconds."""
    balance = machine_balance(compilation.build.machine_for(compilation.target))
    return [_chain_data(x) | {"machine_flops_per_byte": balance} for x in compilation.chains]


def _chain_data(chain: ConsideredChain) -> dict[str, Any]:
    evaluation, construction = chain.evaluation, chain.construction
    counts = None if construction is None else construction.counts
    programs = () if construction is None else construction.programs
    tiling = programs[0].tiling if programs else None
    return {
        "contractions": list(evaluation.contractions),
        "replaces": list(evaluation.kernels),
        "flops_per_byte": [x.flops_per_byte for x in evaluation.intensities],
        "before_ns": evaluation.before,
        "after_ns": evaluation.after,
        "chosen": evaluation.chosen,
        "reason": evaluation.reason,
        "task": None if chain.task is None else chain.task.hash,
        "pruning": None if counts is None else dict(counts.waterfall),
        "expression": expression_text(tiling.expression) if isinstance(tiling, ChainTiling) else None,
        "tiles": _tiles_data(tiling),
        "tree": show_tree(programs[0].tree).splitlines() if programs else None,
    }


def _tiles_data(tiling: ChainTiling | ConvolutionTiling | None) -> dict[str, Any] | None:
    if isinstance(tiling, ConvolutionTiling):
        return {"rows": tiling.rows, "channels": tiling.channels, "lanes": tiling.lanes.value}
    return None if tiling is None else dict(tiling.tiles)
