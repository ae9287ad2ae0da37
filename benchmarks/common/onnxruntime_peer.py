"""Times of compiled models next to ONNX Runtime, one thread each, once their results agree."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime

from benchmarks.common.turns import time_medians
from tilewright.runtime.executable import Executable


def time_next_to_onnxruntime(
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    executable: Executable,
    seconds: float,
    turn: int = 3,
    rtol: float = 1e-3,
) -> tuple[float, float]:
    """Median microseconds of a call of the executable and of ONNX Runtime, which take turns.

    Args:
        model: what the executable was compiled from.
        feeds: inputs by name.
        executable: of one thread.
        seconds: time after which no other round of turns begins, unless either has been called less than 5 times.
        turn: calls of each in a turn.
        rtol: relative tolerance of results, besides an absolute one of 1e-3.

    Raises:
        AssertionError: the results differ.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    run_onnxruntime = partial(session.run, None, dict(feeds))
    results = executable.run(feeds)
    expected: Sequence[Any] = run_onnxruntime()
    for output, array in zip(session.get_outputs(), expected, strict=True):
        np.testing.assert_allclose(results[output.name], array, rtol=rtol, atol=1e-3)
    calls = {"ours": partial(executable.run, feeds), "theirs": run_onnxruntime}
    times = time_medians(calls, seconds, turn, least=5)
    return 1e6 * times["ours"], 1e6 * times["theirs"]
