"""What a caller may choose about a compilation, apart from the model.

This module imports no part of the compiler, so a session that loads a compiled artifact can name the options.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.frontend.onnx import ShapeOption
    from tilewright.graph.layouts.plan import Choice, Plan
    from tilewright.machine import Target
    from tilewright.machine.model import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """The choices that decide which code a model becomes. `tilewright.compile` has a keyword of each name.

    Values are kept as the caller wrote them; the pipeline checks them.

    Attributes:
        shapes: ranges or sizes of dynamic dimensions, such as {"batch": "1..64"}.
        target: the target or its name; None for this machine.
        optimizer: name of the preferred optimizer; None for the default.
        machine: the machine that `gensor` and `roller` construct programs for: a description, the name of one in the
            package, or a file; None for the description that fits the target.
        layouts: storage layouts by node or value.
        exact: whether convolutions are always computed directly, never by Winograd.
        winograd: "safe" or "fast", the error growth that Winograd may have; None for the default.
        fusion: "mcfuser", "chimera" or "unfused", how chains of contractions are fused; None for the default.
        variants: the largest number of programs of a kernel whose sizes are dynamic; None for the default.
    """

    shapes: "Mapping[str, ShapeOption] | None" = None
    target: "Target | str | None" = None
    optimizer: str | None = None
    machine: "Machine | str | os.PathLike[str] | None" = None
    layouts: "Plan | Mapping[str, Choice] | None" = None
    exact: bool = False
    winograd: str | None = None
    fusion: str | None = None
    variants: int | None = None
