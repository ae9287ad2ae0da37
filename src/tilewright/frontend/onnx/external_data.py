"""External data: bytes of initializers in files next to the model.

A model is untrusted input, and it names files. A location must be relative, without `..`, and lead (through all
symbolic links) to a regular file inside of the model's folder. The file is then opened component by component without
following links, so that a link created in the meantime is not followed either. Hard links cannot be distinguished from
ordinary files and are read as such.
"""

import os
import stat

import numpy as np
import onnx

from tilewright.errors import Defect, pluralize
from tilewright.graph.ir import Array
from tilewright.machine.alignment import aligned_empty

_FOLDER_HINT = "external data must lie in the model's folder"


class ExternalDataError(Exception):
    """Why external data cannot be read; becomes a `Defect` of the tensor."""


def read_external(tensor: onnx.TensorProto, folders: tuple[str, ...], expected: int) -> Array:
    """The bytes of a tensor that is stored outside of the model's file.

    Args:
        tensor: with data_location EXTERNAL.
        folders: real paths of the folders that may contain data.
        expected: number of bytes that the tensor's type and shape need.

    Raises:
        ExternalDataError: the location is not allowed, or the file is missing or too short.
    """
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    offset = _count(entries.get("offset", "0"), "offset")
    length = _count(entries["length"], "length") if "length" in entries else expected
    if not folders:
        raise ExternalDataError(f"its data lies in file '{location}', but a model in memory has no folder")
    if length != expected:
        raise ExternalDataError(f"expected {pluralize(expected, 'byte')} of data, got length {length}")
    _check_location(location)
    descriptor = _open_inside(location, folders)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ExternalDataError(f"'{location}' is not a regular file")
        if offset + length > status.st_size:
            raise ExternalDataError(
                f"file '{location}' is too short: expected {length} bytes at offset {offset}, "
                f"the file has {status.st_size}"
            )
        _check_memory(length, location)
        return _read(descriptor, offset, length, location)
    finally:
        os.close(descriptor)


def external_data_problem(where: str, error: ExternalDataError) -> Defect:
    """The defect of the tensor that errors call `where`."""
    hint = "pass folder=" if "no folder" in str(error) else _FOLDER_HINT
    return Defect("external-data", where, str(error), hint)


def _count(text: str, what: str) -> int:
    # At most 18 digits, so that sums stay far below what a file offset can hold.
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ExternalDataError(f"{what} {text!r} of its external data is not a number of bytes")
    return int(text)


def _check_location(location: str) -> None:
    if not location or "\0" in location:
        raise ExternalDataError(f"location {location!r} of its external data is not a file name")
    if location.startswith(("/", "\\")) or location[1:2] == ":":
        raise ExternalDataError(f"location '{location}' of its external data is absolute")
    if ".." in location.replace("\\", "/").split("/"):
        raise ExternalDataError(f"location '{location}' of its external data contains '..'")


def _open_inside(location: str, folders: tuple[str, ...]) -> int:
    target = os.path.realpath(os.path.join(folders[0], location))
    for folder in folders:
        if os.path.commonpath((folder, target)) == folder and target != folder:
            return _open_parts(folder, os.path.relpath(target, folder).split(os.sep), location)
    raise ExternalDataError(
        f"location '{location}' of its external data is a link that leads out of the model's folder"
    )


def _open_parts(folder: str, parts: list[str], location: str) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(folder, flags | os.O_DIRECTORY)
        for part in parts[:-1]:
            descriptor = _descend(descriptor, part, flags | os.O_DIRECTORY)
        # O_NONBLOCK: opening a named pipe must not wait for a writer.
        return _descend(descriptor, parts[-1], flags | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise ExternalDataError(f"file '{location}' with its data does not exist") from error
    except OSError as error:
        raise ExternalDataError(f"file '{location}' with its data can't be read ({error.strerror})") from error


def _descend(descriptor: int, part: str, flags: int) -> int:
    try:
        return os.open(part, flags, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _check_memory(length: int, location: str) -> None:
    # A sparse file of any length costs its author nothing.
    if length > machine_memory():
        raise ExternalDataError(
            f"{length} bytes of data in file '{location}' are more than this machine's memory of {machine_memory()}"
        )


def machine_memory() -> int:
    """Bytes of this machine's memory; 2**47, the bytes of an address space, where it is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 1 << 47


def _read(descriptor: int, offset: int, length: int, location: str) -> Array:
    try:
        data = aligned_empty((length,), np.uint8)
    except MemoryError as error:
        raise ExternalDataError(f"there is no memory for {length} bytes of data in file '{location}'") from error
    view, done = data.data, 0
    while done < length:
        count = os.preadv(descriptor, [view[done : done + (1 << 30)]], offset + done)
        if not count:
            raise ExternalDataError(f"file '{location}' shrank while it was read")
        done += count
    view.release()
    return data
