"""Errors that blame a registered operator definition for a kernel that reads out of bounds, instead of the compiler."""

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager

from tilewright.driver.artifact.steps import all_symbols
from tilewright.driver.register_operator import is_registered_definition
from tilewright.errors import DefinitionError, InternalError, VerifyError
from tilewright.expr.computation import Computation
from tilewright.graph.ir import Graph, Node
from tilewright.graph.program import Program, nested_programs
from tilewright.loops.lowering import lower_to_loops
from tilewright.verify.verifier import verify

_BOUNDS_HINT = "keep its indices in bounds for all sizes, by tilewright.select or a clamp, or correct its shape"


@contextmanager
def definitions_checked_on_failure(graph: Graph, program: Program) -> Generator[None]:
    """A context in which a fault of the compiler is one of a registered definition instead, if what that emitted is
    not safe even as plain loops.

    Args:
        graph: the model.
        program: its computations as the definitions emitted them.

    Raises:
        DefinitionError: names the node and the index.
    """
    try:
        yield
    except InternalError as error:
        labels = {n.label for n in _nested_nodes(graph.nodes) if is_registered_definition(n.domain, n.op_type)}
        for part in (program, *nested_programs(program)) if labels else ():
            for step in part.steps:
                if isinstance(step, Computation) and step.label in labels:
                    _require_safe(step, part, error)
        raise


def _require_safe(stage: Computation, program: Program, error: InternalError) -> None:
    params = tuple(dict.fromkeys((*stage.inputs, stage.output)))
    try:
        verify(lower_to_loops("definition", [stage], params, all_symbols(program)))
    except VerifyError as violation:
        what = f"the registered definition emits an unsafe computation: {violation.what}"
        raise DefinitionError(what, where=f"node {stage.label}", hint=_BOUNDS_HINT) from error


def _nested_nodes(nodes: Iterable[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        for subgraph in node.subgraphs.values():
            yield from _nested_nodes(subgraph.nodes)
