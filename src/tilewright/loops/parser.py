"""Loop IR from text: the inverse of `loops/printer.py`.

Expressions are built as written. Whether the program is well-formed (types, bounds, races) is the verifier's
question; the parser only insists that every name means something.
"""

from tilewright.expr.buffer import Buffer, Scope
from tilewright.expr.lexer import error
from tilewright.expr.nodes import TRUE, Load, Var
from tilewright.expr.parser import Reader
from tilewright.loops.ir import Block, BlockIter, For, Func, IterKind, LoopKind, Stmt, Store, seq


def parse(text: str) -> Func:
    """The function that `text` shows.

    Raises:
        ParseError: with line, column, what was expected and what stands there.
    """
    reader = Reader(text, {}, {})
    reader.expect("func")
    name = reader.name("the function's name")
    reader.expect("(", "after the function's name")
    symbols = _symbols_ahead(reader)
    params: list[Buffer] = []
    while not reader.at(";") and not reader.at(")"):
        params.append(_buffer(reader, "parameter"))
        if not reader.accept(","):
            break
    if reader.accept(";"):
        while not reader.at(")"):
            reader.advance()
    reader.expect(")", "after the parameters")
    _open(reader, "the function's header")
    allocs: list[Buffer] = []
    while reader.accept("alloc"):
        allocs.append(_buffer(reader, "alloc"))
        _line_end(reader)
    body = _statements(reader)
    if reader.here.kind != "end":
        raise reader.unexpected("the end of the text")
    return Func(name, tuple(params), symbols, tuple(allocs), body)


def _symbols_ahead(reader: Reader) -> tuple[Var, ...]:
    """The symbols, read before the parameters whose shapes use them."""
    start = reader.position
    while not (reader.at(";") or reader.here.kind in ("newline", "end")):
        reader.advance()
    found: list[Var] = []
    if reader.accept(";"):
        while not reader.at(")"):
            found.append(_symbol(reader))
            if not reader.accept(","):
                break
        if not reader.at(")"):
            raise reader.unexpected("',' or ')' after a symbol")
    reader.position = start
    return tuple(found)


def _symbol(reader: Reader) -> Var:
    name = reader.name("a symbol's name")
    lo = hi = None
    if reader.accept(":"):
        lo = _integer(reader)
        reader.expect("..", "in a symbol's range")
        hi = _integer(reader)
    return _declared(reader, Var(name, lo, hi))


def _integer(reader: Reader) -> int | None:
    sign = -1 if reader.accept("-") else 1
    if reader.here.kind == "int":
        return sign * int(reader.advance().text)
    return None


def _declared(reader: Reader, var: Var) -> Var:
    reader.variables[var.name] = var
    return var


def _buffer(reader: Reader, what: str) -> Buffer:
    token = reader.here
    name = reader.name(f"the name of a {what}")
    reader.expect(":", f"after the name of {what} {name!r}")
    dtype = reader.dtype()
    reader.expect("[", "before the shape")
    shape = reader.listed("]")
    scope = Scope.MEMORY
    if reader.accept("in"):
        word = reader.expect_kind("name", "a memory scope")
        if word.text not in [s.value for s in Scope]:
            raise error(f"expected a memory scope ({', '.join(Scope)}), got {word}", word)
        scope = Scope(word.text)
    if name in reader.buffers:
        raise error(f"buffer {name!r} is declared twice", token)
    reader.buffers[name] = Buffer(name, shape, dtype, scope)
    return reader.buffers[name]


def _line_end(reader: Reader) -> None:
    reader.expect_kind("newline", "the end of the line")


def _open(reader: Reader, after: str) -> None:
    reader.expect(":", f"after {after}")
    _line_end(reader)
    reader.expect_kind("indent", f"indented lines after {after}")


def _statements(reader: Reader) -> Stmt:
    """The statements of one indentation level, up to its end."""
    found: list[Stmt] = []
    while reader.here.kind not in ("dedent", "end"):
        if reader.accept("for"):
            found.append(_loop(reader))
        elif reader.accept("block"):
            found.append(_block(reader))
        else:
            raise reader.unexpected("'for' or 'block'")
    reader.expect_kind("dedent", "the end of the indented lines")
    if not found:
        raise reader.unexpected("'for' or 'block'")
    return seq(*found)


def _loop(reader: Reader) -> For:
    name = reader.name("the name of a loop variable")
    reader.expect("in", "after the loop variable")
    word = reader.expect_kind("name", "a kind of loop")
    if word.text not in [k.value for k in LoopKind]:
        raise error(f"expected a kind of loop ({', '.join(LoopKind)}), got {word}", word)
    reader.expect("(", "before the extent")
    extent = reader.expression()
    reader.expect(")", "after the extent")
    var = _declared(reader, Var(name))
    hints = _hints(reader) if reader.accept("prefetching") else ()
    _open(reader, "the loop's header")
    return For(var, extent, LoopKind(word.text), _statements(reader), hints)


def _hints(reader: Reader) -> tuple[Load, ...]:
    found: list[Load] = []
    while not found or reader.accept(","):
        token = reader.here
        found.append(reader.load(token, reader.name("an element to prefetch")))
    return tuple(found)


def _block(reader: Reader) -> Block:
    name = reader.name("the name of a block")
    reader.expect("(", "after the block's name")
    iters: list[BlockIter] = []
    while not reader.at(")"):
        kind = IterKind.REDUCE if reader.accept("reduce") else IterKind.SPATIAL
        var = reader.name("the name of an iteration variable")
        reader.expect(":", "after an iteration variable")
        extent = reader.expression()
        reader.expect("=", "after the extent of an iteration variable")
        iters.append(BlockIter(_declared(reader, Var(var)), extent, kind, reader.expression()))
        if not reader.accept(","):
            break
    reader.expect(")", "after the iteration variables")
    predicate = reader.expression() if reader.accept("where") else TRUE
    _open(reader, "the block's header")
    init = _store(reader) if reader.accept("init") else None
    body = _store(reader)
    reader.expect_kind("dedent", "nothing more in a block")
    return Block(name, tuple(iters), body, init, predicate)


def _store(reader: Reader) -> Store:
    token = reader.here
    name = reader.name("a store `buffer[indices] = value`")
    target = reader.load(token, name)
    reader.expect("=", "after the element that is stored")
    value = reader.expression()
    _line_end(reader)
    return Store(target.buffer, target.indices, value)
