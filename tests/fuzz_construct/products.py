"""Random products: of matrices, batches, vectors, by letters, of bytes; and attention, which is two of them."""

from collections.abc import Sequence

import numpy as np
from tests.fuzz_construct.builder import FLOATS, Builder, Dim, RandomModel, Rounding, numpy_of


def summed(b: Builder, dtype: str) -> Rounding:
    """The rounding of sums of products; those of small whole numbers are too long for bfloat16's 8 digits."""
    return Rounding.NONE if (b.whole and dtype != "bfloat16") or "int" in dtype else Rounding.LINEAR


LONG = 700
"""The largest size of one axis of a product."""


def gemm(b: Builder) -> RandomModel:
    """Gemm: transposed operands, factors, C of every shape that broadcasts."""
    t = b.choice("dtype", (*FLOATS, "int32"))
    long = b.choice("long", ("none", "none", "none", "m", "n", "k"))
    m, n, k = (b.dim(name, LONG if name == long else 130) for name in "mnk")
    ta, tb = b.flag("transposed A", 0.4), b.flag("transposed B", 0.4)
    operands = [b.operand("A", (k, m) if ta else (m, k), t), b.operand("B", (n, k) if tb else (k, n), t)]
    factors = {} if "int" in t else {"alpha": float(b.choice("alpha", ("1", "2", "0.5"))), "beta": 2.0}
    shape = b.choice("C", ("none", "row", "column", "one", "whole"))
    if shape != "none":
        dims = {"row": (n,), "column": (m, Dim(1)), "one": (), "whole": (m, n)}[shape]
        operands.append(b.operand("C", dims, t))
    y = b.node("Gemm", *operands, transA=int(ta), transB=int(tb), **factors)
    return b.finished(b.epilogue(y, t, None if n.name else n.size), t, summed(b, t))


def matmul(b: Builder) -> RandomModel:
    """MatMul: batches that broadcast, operands that are transposed before, rows and columns alone."""
    t = b.choice("dtype", (*FLOATS, "int32"))
    m, n, k = b.dim("m", 70), b.dim("n", 130), b.dim("k", 130)
    p, q = b.dim("p", 3), b.dim("q", 3)
    left = {"matrix": (m, k), "batch": (q, m, k), "batches": (p, q, m, k), "row": (k,)}
    right = {"matrix": (k, n), "same": (q, k, n), "one": (Dim(1), k, n), "column": (k,)}
    x = turned(b, "A", left[b.choice("left", tuple(left))], t)
    y = turned(b, "B", right[b.choice("right", tuple(right))], t)
    return b.finished(b.epilogue(b.node("MatMul", x, y), t), t, summed(b, t))


def turned(b: Builder, name: str, dims: Sequence[Dim], t: str) -> str:
    """An operand, in memory as it is or with its last two axes in the other order."""
    if len(dims) < 2 or not b.flag(f"{name} turned", 0.4):
        return b.operand(name, dims, t)
    stored = b.operand(name, (*dims[:-2], dims[-1], dims[-2]), t)
    rank = len(dims)
    return b.node("Transpose", stored, perm=[*range(rank - 2), rank - 1, rank - 2])


EQUATIONS = (
    "ij,jk->ik", "ij,kj->ik", "ji,jk->ki", "bij,bjk->bik", "bhid,bhjd->bhij", "bihd,bjhd->bhij", "i,j->ij", "i,i->",
    "ij,j->i", "ij,ij->i", "ij,ij->j", "bi,bj->bij", "aij,ijk->ak", "iaj,jb->aib", "ij,ik->jk", "ijk->ki",
)  # fmt: skip


def einsum(b: Builder) -> RandomModel:
    """Products named by letters: outer, inner, batched, with axes in any order."""
    t = b.choice("dtype", FLOATS[:3])
    equation = b.choice("equation", EQUATIONS)
    terms = equation.split("->")[0].split(",")
    letters = dict.fromkeys("".join(terms))
    dims = {c: b.dim(f"n{c}", (97, 65, 33, 17)[max(map(len, terms)) - 1]) for c in letters}
    operands = [b.operand(f"X{k}", [dims[c] for c in term], t) for k, term in enumerate(terms)]
    return b.finished(b.epilogue(b.node("Einsum", *operands, equation=equation), t), t, summed(b, t))


def attention(b: Builder) -> RandomModel:
    """Softmax of a product, multiplied by another: with a mask or without, heads inside or outside."""
    t = b.choice("dtype", FLOATS)
    batch, heads, width = b.dim("batch", 2), b.dim("heads", 4), b.dim("width", 33, fixed=True)
    rows, columns = b.dim("rows", 33), b.dim("columns", 65)
    inside = b.flag("heads inside", 0.5)
    query, key, value = (
        b.feed(name, (batch, n, heads, width) if inside else (batch, heads, n, width), t)
        for name, n in (("Q", rows), ("K", columns), ("V", columns))
    )
    if inside:
        query, key, value = (b.node("Transpose", x, perm=[0, 2, 1, 3]) for x in (query, key, value))
    scores = b.node("MatMul", query, b.node("Transpose", key, perm=[0, 1, 3, 2]))
    scores = b.node("Mul", scores, b.constant("factor", np.array(0.25, numpy_of(t))))
    if b.flag("masked", 0.4):
        scores = b.node("Add", scores, b.feed("mask", (rows, columns), t))
    y = b.node("MatMul", b.node("Softmax", scores, axis=-1), value)
    return b.finished(b.epilogue(y, t), t, Rounding.SMOOTH)


def integer_product(b: Builder) -> RandomModel:
    """MatMulInteger and ConvInteger: products of bytes, sums in int32."""
    t = b.choice("dtype", ("uint8", "int8"))
    if b.flag("convolution", 0.5):
        c, f, size = b.extent("cin", 9), b.extent("cout", 33), b.dim("h", 20, 3)
        x = b.feed("X", (b.dim("batch", 2), Dim(c), size, b.dim("w", 35, 3)), t)
        zero = [b.constant("zero", np.array(2, t))] if b.flag("zero point") else []
        y = b.node("ConvInteger", x, b.weights("W", (f, c, 3, 3), "int8"), *zero)
    else:
        m, n, k = b.dim("m", 65), b.dim("n", 130), b.dim("k", 100)
        x, w = b.feed("A", (m, k), t), b.operand("B", (k, n), "int8")
        zero = [b.constant("zero", np.array(2, t))] if b.flag("zero point") else []
        y = b.node("MatMulInteger", x, w, *zero)
    return b.finished(y, "int32", Rounding.NONE)
