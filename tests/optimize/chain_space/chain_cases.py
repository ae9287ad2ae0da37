"""Chains, and loop nests of them executed in Python."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import ceil

from hypothesis import strategies as st

from tilewright.optimize.chains.block_expression import BlockExpression, bind_grid, has_many_partial_tiles
from tilewright.optimize.chains.enumerate_expressions import expressions_of
from tilewright.optimize.chains.expression import TiledLoop, TilingExpression, loop_paths, statement_path
from tilewright.optimize.chains.place_statements import (
    PlacedNode,
    Primitive,
    order_problem,
    place_statements,
)
from tilewright.optimize.chains.problem import Chain, ChainAxis, ChainStatement, ChainTensor, ChainWork

Ranges = Mapping[str, range]
"""By axis the points of a tile."""


def tensor(name: str, *axes: str, bytes_: int = 4) -> ChainTensor:
    """A tensor with one dimension per axis."""
    return ChainTensor(name, bytes_, tuple(((a, 1),) for a in axes))


def contraction(
    result: ChainTensor, reduced: str, loads: Sequence[ChainTensor], reads: Sequence[str] = (), *, is_output: bool
) -> ChainStatement:
    """A sum of products along one axis."""
    axes = frozenset((*result.axes, reduced))
    work = (ChainWork(axes, 2.0),)
    own = frozenset((reduced,))
    return ChainStatement(
        result.name, axes, own, True, work, tuple(loads), tuple(reads), frozenset(), result, is_output
    )


def products(extents: Mapping[str, int], granule: int = 16) -> Chain:
    """Products in a row: with the axes m, k, n, h, as in the paper, C = A B and E = C D; every further one more."""
    names = list(extents)
    rows = names[0]
    results, operands = ["C", "E", "G", "I"][: len(names) - 2], ["B", "D", "F", "H"]
    statements: list[ChainStatement] = []
    for k, (result, operand) in enumerate(zip(results, operands, strict=False)):
        reduced, column = names[k + 1], names[k + 2]
        right = tensor(operand, reduced, column)
        loads = [tensor("A", rows, reduced), right] if k == 0 else [right]
        is_last = k == len(results) - 1
        reads = [results[k - 1]] if k else []
        statements.append(contraction(tensor(result, rows, column), reduced, loads, reads, is_output=is_last))
    axes = tuple(ChainAxis(name, extent, granule=granule) for name, extent in extents.items())
    return Chain(axes, tuple(statements))


def gemm_chain(m: int, n: int, k: int, h: int) -> Chain:
    """The paper's chain C = A B, E = C D."""
    return products({"m": m, "k": k, "n": n, "h": h})


def expression(text: str) -> TilingExpression:
    """The expression of a text such as `mn(k,h)`, with one letter per axis."""
    if not text:
        return ()
    if text[0] != "(":
        return (TiledLoop(text[0], expression(text[1:])),)
    depth, start, loops = 0, 1, []
    for k, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if (letter == "," and depth == 1) or depth == 0:
            loops += expression(text[start:k])
            start = k + 1
    return tuple(loops)


def legal_blocks(chain: Chain) -> list[BlockExpression]:
    """The expressions of a chain that compute its results."""
    distinct = dict.fromkeys(bind_grid(chain, e) for e in expressions_of(chain))
    return [b for b in distinct if not has_many_partial_tiles(chain, b.body) and order_problem(chain, b.body) is None]


@st.composite
def tiled_chains(draw: st.DrawFn) -> tuple[Chain, BlockExpression, dict[str, int]]:
    """A small chain of products, a legal expression, and tile sizes, which need not divide the extents."""
    names = "mknhp"[: draw(st.sampled_from((4, 4, 5)))]
    chain = products({name: draw(st.integers(2, 6)) for name in names}, granule=1)
    block = draw(st.sampled_from(legal_blocks(chain)))
    return chain, block, {a.name: draw(st.integers(1, a.extent)) for a in chain.axes}


def tile_ranges(chain: Chain, axis: str, tiles: Mapping[str, int]) -> list[range]:
    """The tiles of an axis."""
    extent, tile = chain.axis(axis).extent, tiles[axis]
    return [range(t * tile, min(extent, (t + 1) * tile)) for t in range(ceil(extent / tile))]


def points(chain: Chain, target: ChainTensor, ranges: Ranges) -> int:
    """Points of a tile of a tensor; whole along axes without a range."""
    total = 1
    for dim in target.dims:
        spans = [ranges.get(a, range(chain.axis(a).extent)) for a, _ in dim]
        values = [c * x for (_, c), span in zip(dim, spans, strict=True) for x in (span[0], span[-1])]
        total *= 1 + sum(values[1::2]) - sum(values[::2])
    return total


def blocks_of(chain: Chain, block: BlockExpression, tiles: Mapping[str, int]) -> Iterator[dict[str, range]]:
    """The tiles along the axes of the grid of every block."""
    for ranges in product(*(tile_ranges(chain, a, tiles) for a in block.grid)):
        yield dict(zip(block.grid, ranges, strict=True))


def execute_placed(
    chain: Chain, block: BlockExpression, tiles: Mapping[str, int], dead: Sequence[str]
) -> tuple[int, int]:
    """Bytes moved and operations of the placed statements of a chain, executed one after the other."""
    placed = place_statements(chain, block.body, dead)
    totals: Counter[str] = Counter()

    def run(node: PlacedNode, ranges: dict[str, range]) -> None:
        if isinstance(node, Primitive):
            if node.kind == "C":
                (work,) = chain.statements[node.position].work
                whole = ChainTensor("points", 1, tuple(((a, 1),) for a in work.axes))
                totals["flops"] += int(work.flops) * points(chain, whole, ranges)
            else:
                totals["bytes"] += node.tensor.bytes * points(chain, node.tensor, ranges)
            return
        for tile in tile_ranges(chain, node.axis, tiles):
            for child in node.body:
                run(child, ranges | {node.axis: tile})

    for ranges in blocks_of(chain, block, tiles):
        for node in placed:
            run(node, ranges)
    return totals["bytes"], totals["flops"]


def loaded_bytes_with_one_tile_kept(chain: Chain, block: BlockExpression, tiles: Mapping[str, int]) -> int:
    """Bytes of inputs that a block loads if it keeps the last tile of each, executed without hoisting anything: every
    statement asks for its tiles in the innermost loop around it."""
    total = 0
    for ranges in blocks_of(chain, block, tiles):
        kept: dict[str, tuple[range, ...]] = {}
        for position, inner in _executions(chain, block.body, (), tiles, dict(ranges)):
            for x in chain.statements[position].loads:
                key = tuple(inner[a] for a in sorted(x.axes) if a in inner)
                if kept.get(x.name) != key:
                    kept[x.name] = key
                    total += x.bytes * points(chain, x, inner)
    return total


def _executions(
    chain: Chain,
    scope: TilingExpression,
    path: tuple[str, ...],
    tiles: Mapping[str, int],
    ranges: dict[str, range],
    paths: dict[str, tuple[str, ...]] | None = None,
) -> Iterator[tuple[int, dict[str, range]]]:
    """The statements in the order of execution, with the tiles that they work on."""
    paths = loop_paths(scope) if paths is None else paths
    around = [statement_path(s.axes, paths) for s in chain.statements]
    items: list[tuple[int, TiledLoop | None]] = [(k, None) for k, x in enumerate(around) if x == path]
    for loop in scope:
        inside = [k for k, x in enumerate(around) if x[: len(path) + 1] == (*path, loop.axis)]
        items += [(min(inside), loop)] if inside else []
    for position, loop in sorted(items, key=lambda x: (x[0], x[1] is None)):
        if loop is None:
            yield position, ranges
            continue
        for tile in tile_ranges(chain, loop.axis, tiles):
            inner = ranges | {loop.axis: tile}
            yield from _executions(chain, loop.body, (*path, loop.axis), tiles, inner, paths)
