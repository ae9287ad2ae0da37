"""Where the function is that runs a parallel loop on a thread team (`thread_team.py`)."""

from enum import Enum, auto

STAGE_SYMBOL = "team.stage"
"""Symbol of `stage` where kernels and the entries that run them are modules of their own."""


class StageLinkage(Enum):
    """What a module has of the function `stage`.

    Attributes:
        OWN: one for its own kernels.
        USED: that of another module.
        DEFINED: the one that kernels of other modules use.
    """

    OWN = auto()
    USED = auto()
    DEFINED = auto()
