"""Refusals of chains in terms of results: axes are named by the results that they index.

The names of axes are those of generated loops, which nobody who wrote a model has seen. Results are named by their
buffers, for which `graph/chains/node_names.py` puts the nodes that compute them.
"""

import re

from tilewright.loops.ir import Func
from tilewright.optimize.chains.stages import chain_stages
from tilewright.tile.statements import axis_names


def with_result_axes(reason: str, func: Func) -> str:
    """A reason with quoted names of axes replaced: "axis 'v_i1' is symbolic" becomes "axis 1 of 't0' is symbolic".

    Args:
        reason: why a kernel can't be one chain.
        func: its untransformed loops.
    """
    places: dict[str, str] = {}
    for stage in chain_stages(func, axis_names(func)):
        places |= {a: f"axis {k} of {stage.name!r}" for k, a in enumerate(stage.spatial) if a not in places}
        places |= {a: f"axis {k} that {stage.name!r} sums along" for k, a in enumerate(stage.reduced)
                   if a not in places}  # fmt: skip
    return re.sub(r"(?:axis )?'(\w+)'", lambda match: places.get(match[1], match[0]), reason)
