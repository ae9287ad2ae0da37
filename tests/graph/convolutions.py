"""Models of one convolution, optionally followed by other nodes."""

from onnx import helper
from tests.driver.models import array, model, value


def convolution(x, w, *, tail=(), constants=None, inputs=(), **attributes):
    """x -> Conv -> t, and further nodes; the last one's output is the model's."""
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["t"], name="conv", **attributes), *tail]
    data = {"w": w, "b": array(3, w.shape[0]), **(constants or {})}
    outputs = [value(nodes[-1].output[0], [f"d{k}" for k in range(len(x))])]
    return model(nodes, [value("x", list(x)), *inputs], outputs, data)
