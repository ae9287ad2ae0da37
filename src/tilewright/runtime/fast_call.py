"""Fast calls: native code that checks the arrays of a call and runs the kernel, for shapes seen before.

Python takes longer to inspect a few arrays and pass pointers than a small kernel takes to run. Everything about a call
is therefore prepared in a *context*, an array of words. A fast call is a function (METH_FASTCALL) that compares its
arguments with what the context expects, stores the addresses of their data, releases the GIL and calls the kernel.
Arrays that do not match are refused without any effect.

    context: main, count, inputs, outputs, weights, workspace, symbols, threads, expected
    expected, per input: its dtype (the address of NumPy's object), its rank, its sizes

It reads fields of NumPy's array objects, which are part of NumPy's ABI. Their offsets are verified once; where they
differ there are no fast calls, and callers do the same in Python.
"""

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tilewright.machine.tree_call import INTERRUPTED
from tilewright.runtime.link_lock import hold_link_lock
from tilewright.runtime.linker import create_jit_linker

MISMATCH = -1
"""The result of a fast call for arrays that do not match; no kernel returns it."""

CONTEXT_WORDS = ("main", "count", "inputs", "outputs", "weights", "workspace", "symbols", "threads", "expected")
"""The words of a context."""

REQUIRED_FLAGS = 0x101
"""Flags of an array that native code can read in place: NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_ALIGNED."""

_FASTCALL = 0x80
"""METH_FASTCALL: the function takes a C array of arguments and their number."""

_word_at = ctypes.c_size_t.from_address
_OBJECT_HEADER = object.__basicsize__
_TYPE, _DATA, _RANK, _SIZES, _DTYPE, _FLAGS = 8, *(_OBJECT_HEADER + x for x in (0, 8, 16, 40, 48))
"""Bytes from the start of an array's object to its type and to NumPy's fields."""

_LLVM_TEXT = f"""
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare i32 @PyGILState_Ensure()
declare i32 @PyErr_CheckSignals()
declare void @PyGILState_Release(i32)

define ptr @tw_enter(ptr %self, ptr %arrays, i64 %given) {{
start:
  %context_at = getelementptr i8, ptr %self, i64 {_DATA}
  %context = load ptr, ptr %context_at
  %main_at = getelementptr i64, ptr %context, i64 0
  %count_at = getelementptr i64, ptr %context, i64 1
  %inputs_at = getelementptr i64, ptr %context, i64 2
  %outputs_at = getelementptr i64, ptr %context, i64 3
  %weights_at = getelementptr i64, ptr %context, i64 4
  %workspace_at = getelementptr i64, ptr %context, i64 5
  %symbols_at = getelementptr i64, ptr %context, i64 6
  %threads_at = getelementptr i64, ptr %context, i64 7
  %expected_at = getelementptr i64, ptr %context, i64 8
  %main = load ptr, ptr %main_at
  %count = load i64, ptr %count_at
  %inputs = load ptr, ptr %inputs_at
  %expected = load ptr, ptr %expected_at
  %enough = icmp eq i64 %given, %count
  br i1 %enough, label %arrays_head, label %refuse

arrays_head:
  %k = phi i64 [ 0, %start ], [ %k_next, %array_fits ]
  %e = phi ptr [ %expected, %start ], [ %e_next, %array_fits ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %array, label %call

array:
  %array_at = getelementptr ptr, ptr %arrays, i64 %k
  %object = load ptr, ptr %array_at
  %type_at = getelementptr i8, ptr %object, i64 {_TYPE}
  %type = load i64, ptr %type_at
  %is_array = icmp eq i64 %type, {id(np.ndarray)}
  br i1 %is_array, label %fields, label %refuse

fields:
  %flags_at = getelementptr i8, ptr %object, i64 {_FLAGS}
  %flags = load i32, ptr %flags_at
  %fitting = and i32 %flags, {REQUIRED_FLAGS}
  %in_place = icmp eq i32 %fitting, {REQUIRED_FLAGS}
  %dtype_at = getelementptr i8, ptr %object, i64 {_DTYPE}
  %dtype = load i64, ptr %dtype_at
  %dtype_wanted = load i64, ptr %e
  %same_dtype = icmp eq i64 %dtype, %dtype_wanted
  %rank_at = getelementptr i8, ptr %object, i64 {_RANK}
  %rank_short = load i32, ptr %rank_at
  %rank = sext i32 %rank_short to i64
  %rank_wanted_at = getelementptr i64, ptr %e, i64 1
  %rank_wanted = load i64, ptr %rank_wanted_at
  %same_rank = icmp eq i64 %rank, %rank_wanted
  %plain = and i1 %in_place, %same_dtype
  %comparable = and i1 %plain, %same_rank
  %sizes_at = getelementptr i8, ptr %object, i64 {_SIZES}
  %sizes = load ptr, ptr %sizes_at
  %wanted = getelementptr i64, ptr %e, i64 2
  br i1 %comparable, label %sizes_head, label %refuse

sizes_head:
  %d = phi i64 [ 0, %fields ], [ %d_next, %size_fits ]
  %open = icmp slt i64 %d, %rank
  br i1 %open, label %size, label %array_fits

size:
  %size_at = getelementptr i64, ptr %sizes, i64 %d
  %size_is = load i64, ptr %size_at
  %size_wanted_at = getelementptr i64, ptr %wanted, i64 %d
  %size_wanted = load i64, ptr %size_wanted_at
  %same_size = icmp eq i64 %size_is, %size_wanted
  br i1 %same_size, label %size_fits, label %refuse

size_fits:
  %d_next = add i64 %d, 1
  br label %sizes_head

array_fits:
  %data_at = getelementptr i8, ptr %object, i64 {_DATA}
  %data = load i64, ptr %data_at
  %input_at = getelementptr i64, ptr %inputs, i64 %k
  store i64 %data, ptr %input_at
  %k_next = add i64 %k, 1
  %e_next = getelementptr i64, ptr %wanted, i64 %rank
  br label %arrays_head

call:
  %outputs = load ptr, ptr %outputs_at
  %weights = load ptr, ptr %weights_at
  %workspace = load ptr, ptr %workspace_at
  %symbols = load ptr, ptr %symbols_at
  %threads = load i64, ptr %threads_at
  %state = call ptr @PyEval_SaveThread()
  %status = call i64 %main(ptr %inputs, ptr %outputs, ptr %weights, ptr %workspace, ptr %symbols, i64 %threads)
  call void @PyEval_RestoreThread(ptr %state)
  %interrupted = icmp eq i64 %status, {INTERRUPTED}
  br i1 %interrupted, label %raise, label %return

return:
  %answer = call ptr @PyLong_FromLongLong(i64 %status)
  ret ptr %answer

raise:
  ret ptr null

refuse:
  %no = call ptr @PyLong_FromLongLong(i64 {MISMATCH})
  ret ptr %no
}}

define i64 @tw_poll() {{
  %state = call i32 @PyGILState_Ensure()
  %raised = call i32 @PyErr_CheckSignals()
  call void @PyGILState_Release(i32 %state)
  %result = sext i32 %raised to i64
  ret i64 %result
}}
"""

_PYTHON_SYMBOLS = (
    "PyEval_SaveThread", "PyEval_RestoreThread", "PyLong_FromLongLong",
    "PyGILState_Ensure", "PyErr_CheckSignals", "PyGILState_Release",
)  # fmt: skip


class _MethodDef(ctypes.Structure):
    """Python's description of a native function (PyMethodDef)."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("code", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _LinkedCode:
    """The linked code, which lives as long as the process.

    Attributes:
        method: Python's description of the function.
        poll: address of the function that native loops call now and then (`poll_address`).
        owners: LLVM objects that own the memory; the code first, then the linker.
    """

    method: _MethodDef
    poll: int
    owners: tuple[object, ...]


def has_fast_calls() -> bool:
    """Whether this process has fast calls."""
    return _link_once() is not None


def poll_address() -> int:
    """The address of `int64 poll(void)`, which handles Python's signals and returns whether one has raised; 0 where
    there are no fast calls.

    It may be called without the GIL. A kernel that then returns `INTERRUPTED` ends its fast call with the exception.
    """
    code = _link_once()
    return 0 if code is None else code.poll


def make_fast_call(context: np.ndarray) -> Callable[..., int] | None:
    """A function that takes arrays and returns the kernel's result, or `MISMATCH`; None where there are no fast calls.

    Args:
        context: int64, the words of `CONTEXT_WORDS`; the caller keeps alive what it points to, and overlapping calls
            have contexts of their own.
    """
    code = _link_once()
    if code is None:
        return None
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return make(ctypes.addressof(code.method), context, None)


def expected_words(dtypes: Sequence[np.dtype], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    """The words of a context that describe the expected arrays: int64. The caller keeps the dtypes alive."""
    words = [x for dtype, shape in zip(dtypes, shapes, strict=True) for x in (id(dtype), len(shape), *shape)]
    return np.array(words, np.int64)


def _has_expected_layout() -> bool:
    """Whether NumPy's fields are at the expected offsets, judged by two arrays that differ in all of them."""
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    if ctypes.sizeof(ctypes.c_void_p) != 8 or sys.byteorder != "little":
        return False
    return all(map(_is_laid_out, (np.zeros((2, 3, 5), np.float32), np.zeros((7, 11), np.int16)[:, ::2])))


def _is_laid_out(array: np.ndarray) -> bool:
    address = id(array)
    expected = {
        _TYPE: id(type(array)), _DATA: int(array.__array_interface__["data"][0]), _DTYPE: id(array.dtype),
        # sizes and strides are adjacent, in one allocation
        _SIZES + 8: _word_at(address + _SIZES).value + 8 * array.ndim,
    }  # fmt: skip
    if any(_word_at(address + offset).value != value for offset, value in expected.items()):
        return False
    sizes = _word_at(address + _SIZES).value
    shape = tuple(_word_at(sizes + 8 * d).value for d in range(array.ndim))
    rank, flags = (ctypes.c_int32.from_address(address + offset).value for offset in (_RANK, _FLAGS))
    return shape == array.shape and rank == array.ndim and flags & REQUIRED_FLAGS == array.flags.num & REQUIRED_FLAGS


@lru_cache(maxsize=1)
def _link_once() -> _LinkedCode | None:
    """The native code, compiled for this process; None where there are no fast calls."""
    if not _has_expected_layout():
        return None
    with hold_link_lock():
        return _compile()


def _compile() -> _LinkedCode | None:
    import llvmlite.binding as llvm  # here because importing LLVM takes 40 ms that `import tilewright` must not

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    jit = create_jit_linker()
    builder = llvm.JITLibraryBuilder().add_ir(_LLVM_TEXT).export_symbol("tw_enter").export_symbol("tw_poll")
    for name in _PYTHON_SYMBOLS:
        address = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
        if address is None:
            return None
        builder.import_symbol(name, address)
    tracker = builder.link(jit, "entry")
    method = _MethodDef(b"enter", tracker["tw_enter"], _FASTCALL, None)
    code = _LinkedCode(method, tracker["tw_poll"], (tracker, jit))
    # Python reads the description of a function until that is gone, so it must not be freed before: neither where the
    # cache is cleared nor in a garbage collection, which would free code that only functions in cycles reference first
    keep = ctypes.pythonapi.Py_IncRef
    keep.restype, keep.argtypes = None, (ctypes.py_object,)
    keep(code)
    return code
