"""Graph passes: rewrites of a graph into an equivalent, simpler graph. `PASSES` is the order in which they run."""

from collections.abc import Callable

from tilewright.graph.control_flow.inline_branches import inline_constant_branches
from tilewright.graph.ir import Graph
from tilewright.graph.passes.batch_normalization import fold_batch_normalization
from tilewright.graph.passes.bias import fold_bias
from tilewright.graph.passes.constant_folding import fold_constants
from tilewright.graph.passes.cse import eliminate_common_subexpressions
from tilewright.graph.passes.dce import eliminate_dead_code
from tilewright.graph.passes.identity import drop_identities
from tilewright.graph.passes.merge_reshape_transpose import merge_reshapes_and_transposes
from tilewright.graph.passes.unused_outputs import drop_unused_outputs

Pass = Callable[[Graph], Graph]

PASSES: tuple[tuple[str, Pass], ...] = (
    ("eliminate dead code", eliminate_dead_code),
    ("drop unused outputs", drop_unused_outputs),
    ("inline branches of constant conditions", inline_constant_branches),
    ("drop identities", drop_identities),
    ("fold constants", fold_constants),
    ("inline branches of folded conditions", inline_constant_branches),
    ("merge reshapes and transposes", merge_reshapes_and_transposes),
    ("eliminate common subexpressions", eliminate_common_subexpressions),
    ("fold bias", fold_bias),
    ("fold batch normalization", fold_batch_normalization),
    ("eliminate dead code", eliminate_dead_code),
    ("drop unused outputs", drop_unused_outputs),
)
"""Names and passes, in order."""


def simplify_graph(graph: Graph) -> Graph:
    """The graph after all passes. Values that the model returns keep their names, and so do nodes."""
    for _, apply in PASSES:
        graph = apply(graph)
    return graph
