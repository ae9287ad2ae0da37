"""Kernels of several computations, and tile trees for them."""

from collections.abc import Sequence
from dataclasses import dataclass

import tilewright as tw
from tilewright.expr.nodes import Expr, MemoryScope
from tilewright.loops.ir import Func, LoopKind
from tilewright.schedule.tails import Tail
from tilewright.tile.statements import statements_of
from tilewright.tile.tree import (
    CacheRead,
    CacheWrite,
    Compute,
    Loop,
    Node,
    RFactor,
    TileTree,
    nest,
)

PARALLEL, VECTORIZED, UNROLLED = LoopKind.PARALLEL, LoopKind.VECTORIZED, LoopKind.UNROLLED
STACK, REGISTER = MemoryScope.STACK, MemoryScope.REGISTER


@dataclass(frozen=True)
class TreeCase:
    """A kernel with a tree.

    Attributes:
        result: the tensor that the kernel computes.
        tree: the tree.
        sizes: values of the symbols that are no multiples of its steps.
    """

    result: tw.Tensor
    tree: TileTree
    sizes: dict[str, int]

    @property
    def func(self) -> Func:
        """The untransformed loops."""
        return func_of(self.result)


def func_of(result: tw.Tensor) -> Func:
    """The untransformed loops of a tensor."""
    return tw.create_schedule(result).func


def axes_of(func: Func, statement: str) -> list[str]:
    """The axes of a statement, in the order of its iteration variables."""
    return [a.axis for a in statements_of(func)[statement].axes]


def loops(*steps: tuple[str, int] | tuple[str, int, LoopKind]) -> list[Loop]:
    """Loops over (axis, step, kind), outermost first; serial where there is no kind."""
    return [Loop(x[0], x[1], (), x[2] if len(x) > 2 else LoopKind.SERIAL) for x in steps]


def product(m: int, n: int, k: int) -> tw.Tensor:
    """C = A B."""
    a, b = tw.placeholder((m, k), name="A"), tw.placeholder((k, n), name="B")
    r = tw.reduce_axis(k, "k")
    return tw.compute((m, n), lambda i, j: tw.sum(a[i, r] * b[r, j], r), "C")


def two_products(m: int, n: int, k: int, h: int) -> tw.Tensor:
    """E = relu(A B) D."""
    a, b = tw.placeholder((m, k), name="A"), tw.placeholder((k, n), name="B")
    d = tw.placeholder((n, h), name="D")
    rk, rn = tw.reduce_axis(k, "k"), tw.reduce_axis(n, "n")
    c = tw.compute((m, n), lambda i, j: tw.sum(a[i, rk] * b[rk, j], rk), "C")
    relu = tw.compute((m, n), lambda i, j: tw.maximum(c[i, j], 0.0), "R")
    return tw.compute((m, h), lambda i, j: tw.sum(relu[i, rn] * d[rn, j], rn), "E")


def tree_of_two_products(func: Func, rows: int = 32, chunk: int = 64, tile: int = 8, lanes: int = 32) -> TileTree:
    """One pass over chunks of the intermediate, whose partial results stay on the stack."""
    m, n, k = axes_of(func, "C")
    h = axes_of(func, "E")[1]
    first = [
        *nest(loops((k, 1), (m, 1, UNROLLED), (n, 1, VECTORIZED)), Compute("C", REGISTER)),
        *nest(loops((m, 1, UNROLLED), (n, 1, VECTORIZED)), Compute("R", STACK)),
    ]
    second = [
        *nest(loops((n, 1), (m, 1, UNROLLED), (h, 1, VECTORIZED)), Compute("E.partial", REGISTER)),
        *nest(loops((m, 1, UNROLLED), (h, 1, VECTORIZED)), Compute("E", STACK)),
    ]
    chunks = nest(
        loops((n, chunk)),
        *nest(loops((m, tile), (n, lanes)), *first),
        *nest(loops((m, tile), (h, lanes)), *second),
    )
    store = nest(loops((m, 1), (h, 1, VECTORIZED)), Compute("E.store"))
    body = nest(loops((m, rows, PARALLEL)), *chunks, *store)
    return TileTree(body, (CacheWrite("E", "E.store"), RFactor("E", "E.partial", n, chunk)))


def attention(queries: Expr | int, keys: Expr | int, depth: int, divided: bool = True) -> tw.Tensor:
    """softmax(Q K^T / sqrt(depth)) V; without the division by the sums of rows unless `divided`."""
    q, k = tw.placeholder((queries, depth), name="Q"), tw.placeholder((keys, depth), name="K")
    v = tw.placeholder((keys, depth), name="V")
    e, c = tw.reduce_axis(depth, "e"), tw.reduce_axis(keys, "c")
    score = tw.compute((queries, keys), lambda i, j: tw.sum(q[i, e] * depth**-0.5 * k[j, e], e), "S")
    largest = tw.compute((queries,), lambda i: tw.max(score[i, c], c), "m")
    total = tw.compute((queries,), lambda i: tw.sum(tw.exp(score[i, c] - largest[i]), c), "L")

    def term(i: Expr, h: Expr) -> Expr:
        share = tw.exp(score[i, c] - largest[i])
        return (share / total[i] if divided else share) * v[c, h]

    return tw.compute((queries, depth), lambda i, h: tw.sum(term(i, h), c), "O")


def tree_of_attention(func: Func, rows: int = 16, chunk: int = 32, keys: int = 8, columns: int = 16) -> TileTree:
    """Online softmax: one pass over chunks of keys; queries are the lanes of vectors."""
    i, c, e = axes_of(func, "S")
    h = axes_of(func, "O")[1]
    scores = nest(loops((c, keys), (e, 1), (c, 1, UNROLLED), (i, 1, VECTORIZED)), Compute("S", STACK, i))
    largest = nest(loops((c, 1), (i, 1, VECTORIZED)), Compute("m", STACK))
    total = nest(loops((c, 1), (i, 1, VECTORIZED)), Compute("L", STACK, i, online=True))
    weighted = nest(
        loops((h, columns), (c, 1), (h, 1, UNROLLED), (i, 1, VECTORIZED)), Compute("O", STACK, i, online=True)
    )
    queries = nest(loops(("Q.copy.1", 1), ("Q.copy.0", 1, VECTORIZED)), Compute("Q.copy", STACK))
    store = nest(loops((h, 1), (i, 1, VECTORIZED)), Compute("O.store"))
    chunks = nest(loops((c, chunk)), *scores, *largest, *total, *weighted)
    body = nest(loops((i, rows, PARALLEL)), *queries, *chunks, *store)
    return TileTree(body, (CacheWrite("O", "O.store"), CacheRead("S", "Q.copy", "Q", (1, 0))))


def inverted_residual(size: int, channels: int, wide: int, outputs: int) -> tw.Tensor:
    """A 1x1, a depthwise 3x3 and a 1x1 convolution, channels last, with rectifiers between them."""
    x, w1 = tw.placeholder((size + 2, size + 2, channels), name="X"), tw.placeholder((channels, wide), name="W1")
    w2, w3 = tw.placeholder((3, 3, wide), name="W2"), tw.placeholder((wide, outputs), name="W3")
    k, w = tw.reduce_axis(channels, "k"), tw.reduce_axis(wide, "w")
    r, q = tw.reduce_axis(3, "r"), tw.reduce_axis(3, "q")
    padded = (size + 2, size + 2, wide)
    e = tw.compute(padded, lambda y, z, c: tw.sum(x[y, z, k] * w1[k, c], k), "E")
    a = tw.compute(padded, lambda y, z, c: tw.maximum(e[y, z, c], 0.0), "A")
    d = tw.compute((size, size, wide), lambda y, z, c: tw.sum(a[y + r, z + q, c] * w2[r, q, c], [r, q]), "D")
    return tw.compute((size, size, outputs), lambda y, z, o: tw.sum(d[y, z, w] * w3[w, o], w), "O")


def tree_of_inverted_residual(func: Func, rows: int = 5, columns: int = 10, wide: int = 16) -> TileTree:
    """Tiles of the picture with halos, over chunks of the wide channels; the halo is computed again by every tile."""
    y, z, c, k = axes_of(func, "E")
    dy, dz, _, r, q = axes_of(func, "D")
    o = axes_of(func, "O")[2]
    expand = nest(loops((y, 1), (z, 4), (k, 1), (z, 1, UNROLLED), (c, 1, VECTORIZED)), Compute("E", STACK))
    rectify = nest(loops((y, 1), (z, 1), (c, 1, VECTORIZED)), Compute("A", STACK))
    depthwise = nest(loops((dy, 1), (dz, 1), (r, 1), (q, 1, UNROLLED), (c, 1, VECTORIZED)), Compute("D", STACK))
    project = nest(loops((dy, 1), (dz, 5), (c, 1), (dz, 1, UNROLLED), (o, 1, VECTORIZED)), Compute("O", STACK))
    store = nest(loops((dy, 1), (dz, 1), (o, 1, VECTORIZED)), Compute("O.store"))
    chunks = nest(loops((c, wide)), *expand, *rectify, *depthwise, *project)
    body = nest(loops((dy, rows, PARALLEL), (dz, columns)), *chunks, *store)
    return TileTree(body, (CacheWrite("O", "O.store"),))


def tree_of_three_caches(
    func: Func, l3: int = 192, l2: int = 96, l1: int = 48, k_blocks: Sequence[int] = (32, 16)
) -> TileTree:
    """A product in tiles for three caches and two levels of K-blocks, with partial sums for both."""
    m, n, k = axes_of(func, "C")
    outer, inner = k_blocks
    tile = nest(loops((k, 1), (m, 1, UNROLLED), (n, 1, VECTORIZED)), Compute("C.inner", REGISTER))
    add_inner = nest(loops((m, 1, UNROLLED), (n, 1, VECTORIZED)), Compute("C.outer", STACK))
    add_outer = nest(loops((m, 1), (n, 1, VECTORIZED)), Compute("C", STACK))
    blocks = nest([Loop(k, inner, (), tail=Tail.REMAINDER), *loops((m, 6), (n, 16))], *tile, *add_inner)
    body: tuple[Node, ...] = nest([Loop(k, outer, ())], *blocks, *add_outer)
    store = nest(loops((m, 1), (n, 1, VECTORIZED)), Compute("C.store"))
    around = loops((n, l3, PARALLEL), (m, l3, PARALLEL), (n, l2), (m, l2), (n, l1), (m, l1))
    staging = (CacheWrite("C", "C.store"), RFactor("C", "C.outer", k, outer), RFactor("C.outer", "C.inner", k, inner))
    return TileTree(nest(around, *body, *store), staging)


def cases() -> dict[str, TreeCase]:
    """Kernels with trees, by name."""
    n, t = tw.symbol("N", 1, 1 << 16), tw.symbol("T", 1, 1 << 16)
    chain, softmax = two_products(70, 96, 24, 40), attention(n, t, 16)
    block, gemm = inverted_residual(10, 8, 32, 24), product(200, 100, 72)
    return {
        "two products": TreeCase(chain, tree_of_two_products(func_of(chain)), {}),
        "attention": TreeCase(softmax, tree_of_attention(func_of(softmax)), {"N": 37, "T": 75}),
        "inverted residual": TreeCase(block, tree_of_inverted_residual(func_of(block)), {}),
        "three caches": TreeCase(gemm, tree_of_three_caches(func_of(gemm)), {}),
    }
