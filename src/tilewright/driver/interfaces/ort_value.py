"""Tensors and bindings with ONNX Runtime's interface; all of them are in main memory."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from tilewright.errors import FeedError, OptionError
from tilewright.runtime.weights import numpy_dtype

Array = np.ndarray[Any, Any]

ONNX_TYPE_NAMES = {"float32": "float", "float64": "double", "any": "unknown"}
"""ONNX's names of element types where they are not NumPy's."""

_ELEMENT_TYPES = (
    "", "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "float64",
    "uint32", "uint64", "", "", "bfloat16",
)  # fmt: skip
"""NumPy's names of ONNX's element types by number."""


def expect_cpu(device_type: str) -> None:
    """Requires that a device is the CPU.

    Raises:
        OptionError: it is another one.
    """
    if device_type.lower() != "cpu":
        what = f"expected 'cpu', got {device_type!r}"
        raise OptionError(what, where="argument 'device_type'", hint="all tensors are in main memory")


def element_dtype(element_type: Any) -> np.dtype:
    """The NumPy type of an element type: a NumPy type, or ONNX's number of one.

    Raises:
        OptionError: there is no such type.
    """
    if isinstance(element_type, int):
        name = _ELEMENT_TYPES[element_type] if 0 < element_type < len(_ELEMENT_TYPES) else ""
        if name:
            return numpy_dtype(name)
    else:
        with suppress(TypeError):
            return np.dtype(element_type)
    raise OptionError(f"there is no element type {element_type}", where="argument 'element_type'")


def array_at(address: int, dtype: np.dtype, shape: Sequence[int]) -> Array:
    """The array in memory that the caller owns; nothing is copied."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = (ctypes.c_byte * size).from_address(address)
    return np.frombuffer(memoryview(memory), np.uint8).view(dtype).reshape(tuple(shape))


class OrtValue:
    """A tensor."""

    __slots__ = ("_array",)

    def __init__(self, array: Any) -> None:
        """Args: an array, which is not copied."""
        self._array: Array = np.asarray(array)

    @staticmethod
    def ortvalue_from_numpy(numpy_obj: Any, device_type: str = "cpu", device_id: int = 0) -> "OrtValue":
        """A tensor in the memory of an array, which is copied only where its elements are not contiguous.

        Raises:
            OptionError: the device is not the CPU.
        """
        expect_cpu(device_type)
        return OrtValue(np.asarray(numpy_obj, order="C"))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any = np.float32, device_type: str = "cpu", device_id: int = 0
    ) -> "OrtValue":
        """A tensor of undefined elements.

        Raises:
            OptionError: the device is not the CPU, or there is no such type.
        """
        expect_cpu(device_type)
        return OrtValue(np.empty(tuple(shape), element_dtype(element_type)))

    def numpy(self) -> Array:
        """The array, which is not copied."""
        return self._array

    def shape(self) -> list[int]:
        """The sizes."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """The type, such as "tensor(float)"."""
        name = self._array.dtype.name
        return f"tensor({ONNX_TYPE_NAMES.get(name, name)})"

    def element_type(self) -> int:
        """ONNX's number of the element type, 0 for none."""
        name = self._array.dtype.name
        return _ELEMENT_TYPES.index(name) if name in _ELEMENT_TYPES else 0

    def device_name(self) -> str:
        """Where it is."""
        return "cpu"

    def data_ptr(self) -> int:
        """The address of the first element."""
        return int(self._array.ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        """Its bytes."""
        return int(self._array.nbytes)

    def has_value(self) -> bool:
        """Always."""
        return True

    def is_tensor(self) -> bool:
        """Always."""
        return True

    def is_tensor_sequence(self) -> bool:
        """Never."""
        return False

    def is_sparse_tensor(self) -> bool:
        """Never."""
        return False

    def update_inplace(self, np_arr: Any) -> None:
        """Replace the elements.

        Raises:
            FeedError: the array has another shape or type.
        """
        source = np.asarray(np_arr)
        if source.shape != self._array.shape or source.dtype != self._array.dtype:
            expected, actual = (f"{a.dtype} {list(a.shape)}" for a in (self._array, source))
            raise FeedError(f"expected {expected}, got {actual}", where="argument 'np_arr'")
        np.copyto(self._array, source)


def array_of(value: Any) -> Any:
    """The array of a tensor of this package or of ONNX Runtime; anything else as it is."""
    return value if isinstance(value, np.ndarray) or not hasattr(value, "numpy") else value.numpy()


class IOBinding:
    """Inputs and outputs of a session's runs that stay the same."""

    def __init__(self, input_names: Sequence[str], output_names: Sequence[str]) -> None:
        """Args: names of the session's inputs, overridable initializers among them, and outputs."""
        self._input_names, self._output_names = tuple(input_names), tuple(output_names)
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Array | None] = {}
        self._results: list[Any] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an array.

        Raises:
            FeedError: the session has no such input.
        """
        self._check(name, self._input_names, "input")
        self._inputs[name] = arr_on_cpu

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind memory that the caller owns, by its address.

        Raises:
            FeedError: the session has no such input.
            OptionError: the device is not the CPU, or there is no such type.
        """
        expect_cpu(device_type)
        self.bind_cpu_input(name, array_at(buffer_ptr, element_dtype(element_type), shape))

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Bind a tensor.

        Raises:
            FeedError: the session has no such input.
        """
        self.bind_cpu_input(name, array_of(ortvalue))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output: in memory that the caller owns, or (without an address) in new memory.

        Raises:
            FeedError: the session has no such output.
            OptionError: the device is not the CPU, or an address comes without a type or a shape.
        """
        expect_cpu(device_type)
        self._check(name, self._output_names, "output")
        if buffer_ptr is None:
            self._outputs[name] = None
            return
        if element_type is None or shape is None:
            what = "expected an element type and a shape with an address"
            raise OptionError(what, where="argument 'buffer_ptr'")
        self._outputs[name] = array_at(buffer_ptr, element_dtype(element_type), shape)

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Ask for an output in a tensor.

        Raises:
            FeedError: the session has no such output.
        """
        self._check(name, self._output_names, "output")
        self._outputs[name] = array_of(ortvalue)

    def synchronize_inputs(self) -> None:
        """Nothing to wait for."""

    def synchronize_outputs(self) -> None:
        """Nothing to wait for."""

    def get_outputs(self) -> list[OrtValue]:
        """The results of the last run, in the order in which outputs were bound."""
        return [OrtValue(x) for x in self._results]

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The results of the last run as arrays."""
        return list(self._results)

    def clear_binding_inputs(self) -> None:
        """Forget all inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget all outputs and results."""
        self._outputs.clear()
        self._results = []

    def run(self, run: Callable[[Sequence[str], Mapping[str, Any]], list[Any]]) -> None:
        """Run a session's function on what is bound.

        Raises:
            FeedError: no output is bound, or a result does not fit the memory that is bound to it.
        """
        if not self._outputs:
            raise FeedError("no output is bound", where="argument 'iobinding'", hint="call bind_output")
        results = run(list(self._outputs), self._inputs)
        self._results = [
            value if target is None else _copy_into(name, value, target)
            for (name, target), value in zip(self._outputs.items(), results, strict=True)
        ]

    def _check(self, name: str, names: Sequence[str], kind: str) -> None:
        if name not in names:
            hint = f"those that exist are {', '.join(names)}"
            raise FeedError(f"no such {kind}", where=f"{kind} '{name}'", hint=hint)


def _copy_into(name: str, value: Any, target: Array) -> Array:
    result = np.asarray(value)
    if result.shape != target.shape or result.dtype != target.dtype:
        expected, bound = (f"{a.dtype} {list(a.shape)}" for a in (result, target))
        raise FeedError(f"the bound memory is {bound}, the result {expected}", where=f"output '{name}'")
    np.copyto(target, result)
    return target
