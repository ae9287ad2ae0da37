"""Object files (ELF, 64 bits, little-endian) without the names of symbols.

LLVM's object code depends on names in the tables of strings and symbols alone; relocations refer to symbols by
position. Here a symbol that the file defines is its section, offset, size and kind, one that it only uses its name.
"""

import struct
from dataclasses import dataclass
from hashlib import sha256

_ARCHIVE = b"!<arch>\n"
_SYMTAB, _STRTAB, _RELA, _NOBITS = 2, 3, 4, 8
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    flags: int
    link: int
    info: int
    align: int
    entry: int
    size: int
    data: bytes


def neutral_code(code: bytes) -> list[str]:
    """The lines of an object file, or of all object files of an archive (Unix `ar`), one after the other.

    Raises:
        ValueError: it is neither.
    """
    if not code.startswith(_ARCHIVE):
        return neutral_object(code)
    lines: list[str] = []
    at = len(_ARCHIVE)
    while at < len(code):
        size = int(code[at + 48 : at + 58])
        lines += neutral_object(code[at + 60 : at + 60 + size])
        at += 60 + size + size % 2
    return lines


def neutral_object(code: bytes) -> list[str]:
    """One line per section: name, properties, size, and the hash of its content in terms of sections and offsets.

    Raises:
        ValueError: it is no such file.
    """
    if not code:
        return []
    if code[:6] != b"\x7fELF\x02\x01":
        raise ValueError("expected an ELF file of 64 bits, little-endian")
    sections = _sections(code)
    symbols = _symbols(sections)
    lines: list[str] = []
    for s in sections:
        if s.kind == _STRTAB:
            continue
        if s.kind == _SYMTAB:
            # names decide the order in the table
            content = "\n".join(sorted(symbols)).encode()
        elif s.kind == _RELA:
            content = "\n".join(_relocation(s.data, at, symbols) for at in range(0, s.size, s.entry)).encode()
        else:
            content = s.data
        place = f" for section {s.info}" if s.kind == _RELA else ""
        digest = sha256(content).hexdigest()
        lines.append(f"{s.name}{place}: kind {s.kind}, flags {s.flags}, align {s.align}, {s.size} bytes, {digest}")
    return lines


def _sections(code: bytes) -> list[_Section]:
    fields = _HEADER.unpack_from(code)
    start, size, count, names = fields[6], fields[11], fields[12], fields[13]
    rows = [_SECTION.unpack_from(code, start + k * size) for k in range(count)]
    table = rows[names]
    texts = code[table[4] : table[4] + table[5]]
    found: list[_Section] = []
    for name, kind, flags, _, offset, length, link, info, align, entry in rows:
        data = b"" if kind == _NOBITS else code[offset : offset + length]
        found.append(_Section(_text(texts, name), kind, flags, link, info, align, entry, length, data))
    return found


def _symbols(sections: list[_Section]) -> list[str]:
    """What every symbol is, by its position in the table."""
    table = next((s for s in sections if s.kind == _SYMTAB), None)
    if table is None:
        return []
    texts = sections[table.link].data
    found: list[str] = []
    for at in range(0, table.size, _SYMBOL.size):
        name, info, other, section, value, size = _SYMBOL.unpack_from(table.data, at)
        # a symbol of kind 4 names the source file
        called = _text(texts, name) if section == 0 else ""
        found.append(f"{called} kind {info} {other} section {section} at {value}, {size} bytes")
    return found


def _relocation(data: bytes, at: int, symbols: list[str]) -> str:
    offset, info, addend = _RELOCATION.unpack_from(data, at)
    return f"{offset} kind {info & 0xFFFFFFFF} of {symbols[info >> 32]} plus {addend}"


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()
