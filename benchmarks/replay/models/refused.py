"""Models that the compiler refuses; what is compared is the class of the error."""

import onnx

from benchmarks.replay.models.build import Graph, Model, Models


def models() -> Models:
    """All of them."""
    yield Model("refused/sizes_do_not_fit", _sizes)
    yield Model("refused/unknown_operator", _unknown)
    yield Model("refused/unknown_dimension", _fine, ("m:1..4",))
    yield Model("refused/empty_range", _fine, ("n:4..1",))


def _sizes() -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("MatMul", g.input(4, 5), g.input(6, 7)))


def _unknown() -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("NoSuchOperator", g.input(4, 5)))


def _fine() -> onnx.ModelProto:
    g = Graph()
    return g.done(g.op("Exp", g.input("n", 5)))
