"""Registration of users' operators: by a definition that emits computations, or by a Python function."""

from collections.abc import Callable
from typing import Any

from tilewright.custom_operators import PYTHON_OPERATORS, REGISTERED_DEFINITIONS, PythonOperator, ResultTypes
from tilewright.errors import DefinitionError, OptionError, TilewrightError, pluralize
from tilewright.ops.definition import IGNORED_ATTRIBUTES, OPERATORS, Definition, OperatorFunction, OpValue, operator


def register_operator(
    domain: str,
    name: str,
    definition: OperatorFunction | None = None,
    *,
    fallback: Callable[..., Any] | None = None,
    result_types: ResultTypes | None = None,
) -> None:
    """Makes an operator known that models may use; one that was registered before is replaced.

    A definition is native code like that of any operator; where it raises `d.unsupported(...)`, or without one, the
    Python function runs. An artifact holds what a definition emitted, so it runs anywhere; a program that loads one
    with a Python function registers the function again.

    Args:
        domain: of the operator set that the model imports.
        name: of the operator.
        definition: emits computations through a `Definition` and returns the result, or a tuple of them.
        fallback: takes a read-only NumPy array per input (None for an omitted one) and the attributes by name; returns
            an array, or a tuple of one per output.
        result_types: of the function, where the model does not declare the types of its results: takes (type name,
            shape) of every input, and the attributes; returns (type name, shape) of every result. A size of a shape is
            a number, an expression of the inputs' sizes, or None where only the call tells it.

    Raises:
        OptionError: neither a definition nor a function is given, one is not callable, or the operator is one that the
            package defines.
    """
    where = f"operator '{domain}::{name}'"
    for given, argument in ((domain, "domain"), (name, "name")):
        if not isinstance(given, str) or not given:  # pyright: ignore[reportUnnecessaryIsInstance]
            hint = "a domain of your own, such as 'com.example'; standard operators can't be replaced"
            raise OptionError(f"expected a nonempty text, got {given!r}", where=f"argument '{argument}'", hint=hint)
    if domain == "ai.onnx":
        hint = "choose a domain of your own, such as 'com.example'"
        raise OptionError("standard operators can't be replaced", where=where, hint=hint)
    if definition is None and fallback is None:
        hint = "give a definition, or a Python function as `fallback`"
        raise OptionError("expected a definition or a function, got neither", where=where, hint=hint)
    for given, argument in ((definition, "definition"), (fallback, "fallback"), (result_types, "result_types")):
        if given is not None and not callable(given):
            raise OptionError(f"expected a function, got {type(given).__name__}", where=f"argument '{argument}'")
    _import_definitions()
    key = domain, name
    if key in OPERATORS and key not in REGISTERED_DEFINITIONS:
        raise OptionError("the package defines this operator", where=where, hint="choose another domain or name")
    _forget(key)
    if definition is not None:
        operator(name, domain=domain)(_checked(definition, where))
        REGISTERED_DEFINITIONS.add(key)
    if fallback is not None:
        PYTHON_OPERATORS[key] = PythonOperator(fallback, result_types)


def is_registered_definition(domain: str, name: str) -> bool:
    """Whether a user registered the operator by a definition."""
    return (domain, name) in REGISTERED_DEFINITIONS


def _import_definitions() -> None:
    """Imports the package's own definitions, so that none is replaced unnoticed."""
    import tilewright.ops.library  # noqa: F401 # pyright: ignore[reportUnusedImport]


def _forget(key: tuple[str, str]) -> None:
    if key in REGISTERED_DEFINITIONS:
        del OPERATORS[key], IGNORED_ATTRIBUTES[key]
        REGISTERED_DEFINITIONS.discard(key)
    PYTHON_OPERATORS.pop(key, None)


def _checked(definition: OperatorFunction, where: str) -> OperatorFunction:
    """The definition, whose faults are errors that name the operator."""

    def checked(d: Definition) -> OpValue | tuple[OpValue, ...]:
        try:
            result = definition(d)
        except TilewrightError:
            raise
        except Exception as error:
            what = f"the definition of {where} failed ({type(error).__name__}: {error})"
            raise DefinitionError(what, where=f"node {d.label}") from error
        results: tuple[Any, ...] = result if isinstance(result, tuple) else (result,)
        for value in results:
            if not isinstance(value, OpValue):
                what = f"the definition of {where} returned {type(value).__name__}, expected what d.compute returns"
                raise DefinitionError(what, where=f"node {d.label}")
        if len(results) < d.num_outputs:
            returned, expected = pluralize(len(results), "result"), pluralize(d.num_outputs, "output")
            what = f"the definition of {where} returned {returned} for {expected}"
            raise DefinitionError(what, where=f"node {d.label}")
        return result

    return checked
