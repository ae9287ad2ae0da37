"""Masks of scores by their indices, such as causal ones: which share of a kernel's tiles has a score that counts.

Tiles of keys that a mask excludes as a whole are not computed (`lower/skip_masked_tiles.py`), which the models of
costs have to know: the smaller the tiles, the fewer scores are computed in vain.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.expr.algebra.bounds import Bounds, facts_of
from tilewright.expr.algebra.polynomial import polynomial
from tilewright.expr.nodes import Expr, Var
from tilewright.expr.pattern import is_masked_score
from tilewright.expr.traversal import conjuncts, free_vars, has_loads
from tilewright.loops.ir import Block, Func, IterKind, blocks
from tilewright.tile.shape_samples import value_of
from tilewright.tile.statements import axis_names

MAX_SAMPLED_TILES = 64
"""Tiles of rows that are looked at."""

SKIPPED_KEYS = 1.5
"""A skipped tile takes as long as so many of its keys otherwise: every result is loaded, added to and stored once."""

Shares = NDArray[np.float64]
"""A share per candidate."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """rows * row + keys * key + offset >= 0, over a score's row and key.

    Attributes:
        rows, keys: the coefficients.
        offset: over symbols.
    """

    rows: int
    keys: int
    offset: Expr


@dataclass(frozen=True, slots=True)
class IndexMask:
    """A mask of scores by their indices.

    Attributes:
        row: the axis of rows.
        key: the axis of keys, along which rows are reduced.
        comparisons: all of which hold for a score that counts.
    """

    row: str
    key: str
    comparisons: tuple[Comparison, ...]

    def executed_share(
        self, extents: Mapping[str, int], tiles: tuple[Shares, Shares], symbols: Mapping[Var, int]
    ) -> Shares:
        """The share of the work that is left: pairs of a tile of rows and one of keys with a score that counts, and
        what others come to (`verify/masked_iterations.py`).

        Args:
            extents: of the axes.
            tiles: points of tiles of rows and of keys, per candidate.
            symbols: sizes of the kernel's symbols.
        """
        pairs = np.stack(tiles, axis=1).astype(np.int64)
        distinct, places = np.unique(pairs, axis=0, return_inverse=True)
        counts = extents[self.row], extents[self.key]
        shares = [self._share(counts, (int(r), int(k)), symbols) for r, k in distinct]
        return np.array(shares, np.float64)[places.reshape(-1)]

    def _share(self, extents: tuple[int, int], tile: tuple[int, int], symbols: Mapping[Var, int]) -> float:
        starts = [np.arange(0, max(1, n), max(1, t), dtype=np.int64) for n, t in zip(extents, tile, strict=True)]
        rows, keys = starts
        rows = rows[:: -(-len(rows) // MAX_SAMPLED_TILES)]
        live = np.ones((len(rows), len(keys)), np.bool_)
        for c in self.comparisons:
            ends = c.rows * (tile[0] - 1 if c.rows > 0 else 0) + c.keys * (tile[1] - 1 if c.keys > 0 else 0)
            offset = ends + value_of(c.offset, symbols)
            live &= c.rows * rows[:, None] + c.keys * keys[None, :] + offset >= 0
        skipped = min(1.0, 0.5 / tile[0] + SKIPPED_KEYS / tile[1])
        share = float(live.mean())
        return share + (1.0 - share) * skipped


def index_masks(func: Func) -> tuple[IndexMask, ...]:
    """The masks of a kernel's untransformed loops that exclude scores by their indices."""
    names = axis_names(func)
    reduced = {
        name for b in blocks(func.body) for name, i in zip(names[b.name], b.iters, strict=True)
        if i.kind is IterKind.REDUCE
    }  # fmt: skip
    found = (_index_mask(b, names[b.name], reduced) for b in blocks(func.body))
    return tuple(x for x in found if x is not None)


def _index_mask(block: Block, axes: tuple[str, ...], reduced: set[str]) -> IndexMask | None:
    """The mask that a block applies; None where it applies none, or one that depends on other axes than two."""
    value = block.body.value
    if not is_masked_score(value):
        return None
    names = {i.var: a for a, i in zip(axes, block.iters, strict=True)}
    bounds = Bounds.from_loops((i.var, i.extent) for i in block.iters)
    facts = [f for c in conjuncts(value.cond) if not has_loads(c) for f in facts_of(c, bounds)]
    facts = [f for f in facts if free_vars(f) & names.keys()]
    used = {names[v] for f in facts for v in free_vars(f) if v in names}
    keys = used & reduced
    if len(used) != 2 or len(keys) != 1:
        return None
    (key,), (row,) = keys, used - keys
    comparisons = [_linear_comparison(f, {v: a for v, a in names.items() if a in used}, row, key) for f in facts]
    known = tuple(c for c in comparisons if c is not None)
    return IndexMask(row, key, known) if known else None


def _linear_comparison(fact: Expr, names: Mapping[Var, str], row: str, key: str) -> Comparison | None:
    """A fact as a comparison of a row with a key; None where it is not linear in them."""
    coefficients = {row: 0, key: 0}
    offset = fact
    for monomial, k in polynomial(fact).items():
        moving = [v for a in monomial for v in free_vars(a) if v in names]
        if not moving:
            continue
        if len(monomial) != 1 or monomial[0] not in names:
            return None
        (atom,) = monomial
        assert isinstance(atom, Var)
        coefficients[names[atom]] = k
        offset = offset - atom * k
    return Comparison(coefficients[row], coefficients[key], offset)
