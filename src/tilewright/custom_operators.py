"""Operators that users implement by Python functions, and the packages that bring them along.

Every layer may read this registry: the front end accepts these operators, the graph asks for the types of their
results, and the runtime calls the functions. It imports nothing of the package but errors, so that a program that only
runs compiled models registers functions without the compiler.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, cast

import numpy as np

from tilewright.errors import DefinitionError, pluralize

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
            tuple of one per output. The arrays are read-only: others read them too.
        result_types: types of the results; None where the model declares them.
    """

    function: Callable[..., Any]
    result_types: ResultTypes | None = None


PYTHON_OPERATORS: dict[tuple[str, str], PythonOperator] = {}
"""The operators by (domain, name)."""

REGISTERED_DEFINITIONS: set[tuple[str, str]] = set()
"""The (domain, name) of the operators that users implement by definitions."""


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
    return [_evaluator_class(domain, name, op) for (domain, name), op in PYTHON_OPERATORS.items()]


def _evaluator_class(domain: str, name: str, operator: PythonOperator) -> type:
    from onnx.helper import get_attribute_value  # only models with such operators need it
    from onnx.reference.op_run import OpRun

    def run(self: Any, *inputs: Any, **_: Any) -> tuple[Any, ...]:
        node = self.onnx_node
        attributes = {a.name: get_attribute_value(a) for a in node.attribute}
        texts = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
        results = operator.function(*map(_read_only, inputs), **texts)
        outputs = tuple(results) if isinstance(results, tuple | list) else (results,)
        count = len(node.output)
        if len(outputs) != count and not count < len(outputs) == _num_declared(operator, inputs, texts):
            raise ValueError(f"the function of {domain}::{name} gave {pluralize(len(outputs), 'result')}, not {count}")
        return tuple(map(_writable, outputs[:count]))

    return type(name, (OpRun,), {"op_domain": domain, "_run": run})


def _num_declared(operator: PythonOperator, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> int | None:
    """The number of results that `result_types` declares; a node may omit the last ones. None without it."""
    if operator.result_types is None:
        return None
    types = [None if x is None else (str(np.asarray(x).dtype), np.shape(x)) for x in inputs]
    return len(operator.result_types(types, attributes))


def _read_only(value: Any) -> Any:
    """A view of an array that refuses writes; anything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    view = cast(Any, value).view()
    view.flags.writeable = False
    return view


def _writable(value: Any) -> Any:
    """A copy of an array that is read-only, as views of inputs are; anything else as it is."""
    return cast(Any, value).copy() if isinstance(value, np.ndarray) and not value.flags.writeable else value
