"""ONNX front end: a file, bytes or a ModelProto in, a checked `Graph` out.

`load.py` lists the steps. Importing this package is cheap; the first load imports the `onnx` library.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilewright.frontend.onnx.dimensions import ShapeOption, parse_shape_options
from tilewright.frontend.onnx.read_file import ReadFile
from tilewright.graph.ir import Graph

if TYPE_CHECKING:
    import onnx

__all__ = ["ReadFile", "ShapeOption", "load_onnx", "parse_shape_options"]


def load_onnx(
    model: "str | os.PathLike[str] | bytes | onnx.ModelProto | ReadFile",
    shapes: Mapping[str, ShapeOption] | None = None,
    *,
    folder: "str | os.PathLike[str] | None" = None,
) -> Graph:
    """Loads and checks an ONNX model.

    Args:
        model: a path, the bytes of a file, a ModelProto (which is not changed), or a file that was read before.
        shapes: ranges or sizes of dynamic dimensions. A key is a dimension (`"batch"`, or `"x_2"` for the unnamed third
            dimension of input `x`) with `8`, `"8"`, `"1..64"`, `"1.."`, `"..64"` or `(1, 64)`; or an input with one
            such entry per dimension, as a sequence, or as text (`"1x3x32..960x*"` or `"n,3,h=32..960,*"`). `*` leaves a
            dimension unchanged, a name renames it: equal names mean equal sizes. A dynamic dimension without an entry
            ranges over 1..2**24-1.
        folder: the folder of external data; by default that of the model's file.

    Raises:
        ModelFileError: the file cannot be read or is not an ONNX model.
        ModelError: the model is not valid; lists all of its problems.
        OptionError: `shapes` refers to something that the model does not have, or contradicts it.
    """
    from tilewright.frontend.onnx.load import load  # here because it imports onnx

    return load(model, dict(shapes or {}), None if folder is None else os.fspath(folder))
