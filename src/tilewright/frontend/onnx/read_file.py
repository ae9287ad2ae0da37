"""A model's file whose content was read before it is parsed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(slots=True, eq=False)
class ReadFile:
    """A model's file as it was read, for `load_onnx`: what is compiled are these bytes, whatever happens to the file.

    Attributes:
        path: as the caller has named it, for errors.
        folders: real paths of the folders that its external data may be in; locations are relative to the first one.
        content: the bytes, an array of uint8, which may be dropped (None) once the file is parsed.
    """

    path: Path
    folders: tuple[str, ...]
    content: "np.ndarray[Any, np.dtype[np.uint8]] | None"
