"""The workloads of the paper: chains of two products (Table II) and attention (Table III)."""

from dataclasses import dataclass

from onnx import ModelProto, NodeProto, TensorProto, helper

import tilewright as tw
from tilewright.graph.fusion import Fusion, FusionPattern
from tilewright.loops.ir import Func
from tilewright.machine import Target
from tilewright.optimize.task import Task


@dataclass(frozen=True, slots=True)
class Workload:
    """A chain C = A B, E = C D for each of several batches; of attention with a softmax of the rows of C.

    Attributes:
        name: as in the paper.
        batch: batches, or heads.
        m, n, k, h: rows of A, columns of B, columns of A, columns of D.
        is_attention: whether there is a softmax.
    """

    name: str
    batch: int
    m: int
    n: int
    k: int
    h: int
    is_attention: bool


_GEMM_CHAINS = {
    "G1": (1, 512, 256, 64, 64), "G2": (1, 512, 256, 64, 128), "G3": (1, 512, 256, 64, 256),
    "G4": (1, 512, 512, 256, 256), "G5": (1, 512, 512, 512, 256), "G6": (1, 512, 512, 1024, 256),
    "G7": (1, 512, 512, 128, 128), "G8": (1, 1024, 512, 128, 128), "G9": (1, 2048, 512, 128, 128),
    "G10": (1, 1024, 1024, 128, 128), "G11": (4, 1024, 1024, 128, 128), "G12": (8, 1024, 1024, 128, 128),
}  # fmt: skip
"""Table II: batch, M, N, K, H."""

_ATTENTION = {
    "S1": (8, 512, 512, 64, 64), "S2": (12, 512, 512, 64, 64), "S3": (16, 512, 512, 64, 64),
    "S4": (12, 256, 256, 64, 64), "S5": (16, 256, 256, 64, 64), "S6": (16, 256, 256, 80, 80),
    "S7": (1, 512, 256, 64, 64), "S8": (1, 768, 384, 64, 64), "S9": (1, 1024, 512, 64, 64),
}  # fmt: skip
"""Table III: heads, M, N, K, H, of Bert-Small, -Base, -Large, ViT-Base, -Large, -Huge and MLP-Mixer."""

WORKLOADS = {
    name: Workload(name, *sizes, is_attention)
    for table, is_attention in ((_GEMM_CHAINS, False), (_ATTENTION, True))
    for name, sizes in table.items()
}
"""All workloads by name."""

PRUNED = Workload("Fig. 7", 1, 1024, 1024, 512, 512, False)
"""The workload whose pruning the paper shows."""


def func_of(w: Workload) -> Func:
    """The untransformed loops of a workload's kernel."""
    return tw.create_schedule(_attention(w) if w.is_attention else _products(w)).func


def task_of(w: Workload, threads: int | None = None) -> Task:
    """The task of a workload on this host."""
    return Task(func_of(w), frozenset(), Target.host(), Fusion(FusionPattern.SEQUENCE, 0, ()), threads=threads)


def unfused_models(w: Workload) -> dict[str, ModelProto]:
    """Models that compute a workload one after the other, each of one contraction or the softmax with its scaling."""
    a, c, d = [w.batch, w.m, w.k], [w.batch, w.m, w.n], [w.batch, w.n, w.h]
    if not w.is_attention:
        first = _model([helper.make_node("MatMul", ["A", "B"], ["C"])], {"A": a, "B": [w.batch, w.k, w.n]}, "C", c)
        return {
            "first": first,
            "second": _model([helper.make_node("MatMul", ["C", "D"], ["E"])], {"C": c, "D": d}, "E", [*a[:2], w.h]),
        }
    scores = [
        helper.make_node("Transpose", ["K"], ["KT"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["Q", "KT"], ["S"]),
    ]
    scale = helper.make_node("Constant", [], ["scale"], value_float=float(w.k**-0.5))
    softmax = [
        scale,
        helper.make_node("Mul", ["S", "scale"], ["T"]),
        helper.make_node("Softmax", ["T"], ["W"], axis=-1),
    ]
    return {
        "scores": _model(scores, {"Q": a, "K": [w.batch, w.n, w.k]}, "S", c),
        "softmax": _model(softmax, {"S": c}, "W", c),
        "sums": _model([helper.make_node("MatMul", ["W", "V"], ["O"])], {"W": c, "V": d}, "O", [*a[:2], w.h]),
    }


def _model(nodes: list[NodeProto], inputs: dict[str, list[int]], output: str, shape: list[int]) -> ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, s) for name, s in inputs.items()]
    graph = helper.make_graph(nodes, "part", values, [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _first_product(w: Workload) -> tw.Tensor:
    a, b = tw.placeholder((w.batch, w.m, w.k), name="A"), tw.placeholder((w.batch, w.k, w.n), name="B")
    k = tw.reduce_axis(w.k, "k")
    return tw.compute((w.batch, w.m, w.n), lambda x, i, j: tw.sum(a[x, i, k] * b[x, k, j], k), "C")


def _product_with(w: Workload, c: tw.Tensor, name: str) -> tw.Tensor:
    d, n = tw.placeholder((w.batch, w.n, w.h), name=name), tw.reduce_axis(w.n, "n")
    return tw.compute((w.batch, w.m, w.h), lambda x, i, j: tw.sum(c[x, i, n] * d[x, n, j], n), "E")


def _products(w: Workload) -> tw.Tensor:
    return _product_with(w, _first_product(w), "D")


def _scores(w: Workload) -> tw.Tensor:
    q, keys = tw.placeholder((w.batch, w.m, w.k), name="Q"), tw.placeholder((w.batch, w.n, w.k), name="K")
    k = tw.reduce_axis(w.k, "k")
    return tw.compute((w.batch, w.m, w.n), lambda x, i, j: tw.sum(q[x, i, k] * keys[x, j, k], k), "S")


def _softmax(w: Workload, scores: tw.Tensor) -> tw.Tensor:
    shape, scale = (w.batch, w.m, w.n), w.k**-0.5
    c, d = tw.reduce_axis(w.n, "c"), tw.reduce_axis(w.n, "d")
    scaled = tw.compute(shape, lambda x, i, j: scores[x, i, j] * scale, "T")
    largest = tw.compute(shape[:2], lambda x, i: tw.max(scaled[x, i, c], c), "largest")
    power = tw.compute(shape, lambda x, i, j: tw.exp(scaled[x, i, j] - largest[x, i]), "P")
    total = tw.compute(shape[:2], lambda x, i: tw.sum(power[x, i, d], d), "total")
    return tw.compute(shape, lambda x, i, j: power[x, i, j] / total[x, i], "W")


def _attention(w: Workload) -> tw.Tensor:
    return _product_with(w, _softmax(w, _scores(w)), "V")
