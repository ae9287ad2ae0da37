"""Models of one recurrent node."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper
from tests.driver.control_flow_models import FLOAT, made, value

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrent(
    op: str,
    sizes: tuple[int, int, int, int] = (3, 5, 4, 2),
    *,
    lengths: Sequence[int] | None = None,
    dynamic: bool = False,
    results: Sequence[str] = ("Y", "Yh", "Yc"),
    seed: int = 0,
    **options: object,
) -> tuple[onnx.ModelProto, Mapping[str, np.ndarray]]:
    """A model of one node, and inputs for it.

    Args:
        op: the operator.
        sizes: of an input, of a state, of the steps, of the batch.
        lengths: of the sequences; None leaves them out.
        dynamic: whether steps and batch are symbols.
        results: names of the outputs; "" leaves one out.
        seed: of weights and inputs.
        options: attributes of the node, and whether it has inputs that may be left out: `bias` (True), `initial`
            states (False), `peepholes` of an LSTM (False).
    """
    optional = {"bias": True, "initial": False, "peepholes": False}
    bias, initial, peepholes = (bool(options.get(name, default)) for name, default in optional.items())
    attributes = {name: x for name, x in options.items() if name not in optional}
    rng = np.random.default_rng(seed)
    (features, hidden, steps, batch), gates = sizes, GATES[op]
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    is_batch_first = bool(attributes.get("layout"))

    def weights(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.4).astype(np.float32)

    constants = {"W": weights(directions, gates * hidden, features), "R": weights(directions, gates * hidden, hidden)}
    shape = (batch, steps, features) if is_batch_first else (steps, batch, features)
    symbols = ["N", "S", features] if is_batch_first else ["S", "N", features]
    inputs, feeds = [value("X", FLOAT, symbols if dynamic else list(shape))], {"X": weights(*shape) * 4}
    names = ["X", "W", "R", "", "", "", "", ""]
    if bias:
        constants["B"], names[3] = weights(directions, 2 * gates * hidden), "B"
    if lengths is not None:
        inputs.append(value("L", TensorProto.INT32, ["N" if dynamic else batch]))
        feeds["L"], names[4] = np.array(lengths, np.int32), "L"
    if initial:
        states = (batch, directions, hidden) if is_batch_first else (directions, batch, hidden)
        for k, name in ((5, "h0"), (6, "c0"))[: 2 if op == "LSTM" else 1]:
            inputs.append(value(name, FLOAT, list(states)))
            feeds[name], names[k] = weights(*states), name
    if peepholes:
        constants["P"], names[7] = weights(directions, 3 * hidden), "P"
    while not names[-1]:
        names.pop()
    outputs = list(results[: 3 if op == "LSTM" else 2])
    node = helper.make_node(op, names, outputs, name="cell", hidden_size=hidden, **attributes)
    return made([node], inputs, [value(o, FLOAT, None) for o in outputs if o], constants, opset=14), feeds
