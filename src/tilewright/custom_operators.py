"""Operators that users implement by Python functions, and the packages that bring them along.

Every layer may read this registry: the front end accepts these operators, the graph asks for the types of their
results, and the runtime calls the functions. It imports nothing of the package but errors, so that a program that only
runs compiled models registers functions without the compiler.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from tilewright.errors import DefinitionError

ENTRY_POINT_GROUP = "tilewright.operators"
"""The group of entry points by which an installed package registers operators."""

ResultTypes = Callable[[Sequence[tuple[str, tuple[Any, ...]] | None], Mapping[str, Any]], Sequence[tuple[str, Any]]]
"""Element types and shapes of results from those of the inputs (None for an omitted one) and the attributes. A size is
a number, an expression of the inputs' sizes, or None where only the call tells it."""


@dataclass(frozen=True, slots=True)
class PythonOperator:
    """An operator that a Python function computes.

    Attributes:
        function: takes an array per input, None for an omitted one, and the attributes by name; gives an array, or a
            tuple of one per output.
        result_types: types of the results; None where the model declares them.
    """

    function: Callable[..., Any]
    result_types: ResultTypes | None = None


PYTHON_OPERATORS: dict[tuple[str, str], PythonOperator] = {}
"""The operators by (domain, name)."""


class _Packages:
    """Whether the entry points of installed packages were loaded."""

    loaded = False


def load_operator_packages() -> None:
    """Calls the entry points of the group `tilewright.operators` of installed packages, once per process.

    Raises:
        DefinitionError: one cannot be imported, or fails; it names the entry point.
    """
    if _Packages.loaded:
        return
    _Packages.loaded = True
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            entry.load()()
        except Exception as error:
            _Packages.loaded = False
            what = f"the function that registers operators failed ({type(error).__name__}: {error})"
            where = f"entry point '{entry.name}' of the group '{ENTRY_POINT_GROUP}' ({entry.value})"
            raise DefinitionError(what, where=where, hint="mend or remove the package") from error


def evaluator_classes() -> list[type]:
    """The operators as classes of ONNX's reference evaluator."""
    return [_evaluator_class(domain, name, op.function) for (domain, name), op in PYTHON_OPERATORS.items()]


def _evaluator_class(domain: str, name: str, function: Callable[..., Any]) -> type:
    from onnx.helper import get_attribute_value  # only models with such operators need it
    from onnx.reference.op_run import OpRun

    def run(self: Any, *inputs: Any, **_: Any) -> tuple[Any, ...]:
        node = self.onnx_node
        attributes = {a.name: get_attribute_value(a) for a in node.attribute}
        texts = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
        results = function(*inputs, **texts)
        outputs = tuple(results) if isinstance(results, tuple | list) else (results,)
        if len(outputs) < len(node.output):
            raise ValueError(f"the function of {domain}::{name} gave {len(outputs)} results, not {len(node.output)}")
        return outputs[: len(node.output)]

    return type(name, (OpRun,), {"op_domain": domain, "_run": run})
