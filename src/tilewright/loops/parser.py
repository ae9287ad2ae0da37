"""Parser of the loop IR, the inverse of `loops/printer.py`.

Expressions are built as written. The parser only checks that names are declared; types, bounds and races are left to
the verifier.
"""

from tilewright.expr.lexer import parse_error
from tilewright.expr.nodes import TRUE, Buffer, Load, MemoryScope, Symbol, Var
from tilewright.expr.parser import ExprParser
from tilewright.loops.ir import NOTHING, Block, BlockIter, For, Func, If, IterKind, LoopKind, Stmt, Store, seq


def parse(text: str) -> Func:
    """Parses a function.

    Raises:
        ParseError: a syntax error, with line, column, the expected and the actual token.
    """
    reader = ExprParser(text, {}, {})
    reader.expect("func")
    name = reader.name("the function's name")
    reader.expect("(", "after the function's name")
    symbols = _parse_symbols_first(reader)
    params: list[Buffer] = []
    while not reader.is_at(";") and not reader.is_at(")"):
        params.append(_parse_buffer(reader, "parameter"))
        if not reader.accept(","):
            break
    if reader.accept(";"):
        while not reader.is_at(")"):
            reader.advance()
    reader.expect(")", "after the parameters")
    _expect_indent(reader, "the function's header")
    allocs: list[Buffer] = []
    while reader.accept("alloc"):
        allocs.append(_parse_buffer(reader, "alloc"))
        _expect_line_end(reader)
    body = _parse_statements(reader)
    if reader.current.kind != "end":
        raise reader.unexpected_token("the end of the text")
    return Func(name, tuple(params), symbols, tuple(allocs), body)


def _parse_symbols_first(reader: ExprParser) -> tuple[Var, ...]:
    """Parses the symbols by lookahead, as the shapes of the parameters before them use them."""
    start = reader.position
    while not (reader.is_at(";") or reader.current.kind in ("newline", "end")):
        reader.advance()
    symbols: list[Var] = []
    if reader.accept(";"):
        while not reader.is_at(")"):
            symbols.append(_parse_symbol(reader))
            if not reader.accept(","):
                break
        if not reader.is_at(")"):
            raise reader.unexpected_token("',' or ')' after a symbol")
    reader.position = start
    return tuple(symbols)


def _parse_symbol(reader: ExprParser) -> Var:
    name = reader.name("a symbol's name")
    lo = hi = None
    if reader.accept(":"):
        lo = _parse_integer(reader)
        reader.expect("..", "in a symbol's range")
        hi = _parse_integer(reader)
    return _declare(reader, Symbol(name, lo, hi))


def _parse_integer(reader: ExprParser) -> int | None:
    sign = -1 if reader.accept("-") else 1
    if reader.current.kind == "int":
        return sign * int(reader.advance().text)
    return None


def _declare(reader: ExprParser, var: Var) -> Var:
    reader.variables[var.name] = var
    return var


def _parse_buffer(reader: ExprParser, what: str) -> Buffer:
    token = reader.current
    name = reader.name(f"the name of a {what}")
    reader.expect(":", f"after the name of {what} {name!r}")
    dtype = reader.dtype()
    reader.expect("[", "before the shape")
    shape = reader.expression_list("]")
    scope = MemoryScope.MEMORY
    if reader.accept("in"):
        word = reader.expect_kind("name", "a memory scope")
        if word.text not in [s.value for s in MemoryScope]:
            raise parse_error(f"expected a memory scope ({', '.join(MemoryScope)}), got {word}", word)
        scope = MemoryScope(word.text)
    if name in reader.buffers:
        raise parse_error(f"buffer {name!r} is declared twice", token)
    reader.buffers[name] = Buffer(name, shape, dtype, scope)
    return reader.buffers[name]


def _expect_line_end(reader: ExprParser) -> None:
    reader.expect_kind("newline", "the end of the line")


def _expect_indent(reader: ExprParser, after: str) -> None:
    reader.expect(":", f"after {after}")
    _expect_line_end(reader)
    reader.expect_kind("indent", f"indented lines after {after}")


def _parse_statements(reader: ExprParser) -> Stmt:
    """Parses the statements of one indentation level."""
    stmts: list[Stmt] = []
    while reader.current.kind not in ("dedent", "end"):
        if reader.accept("for"):
            stmts.append(_parse_loop(reader))
        elif reader.accept("block"):
            stmts.append(_parse_block(reader))
        elif reader.accept("if"):
            stmts.append(_parse_if(reader))
        else:
            raise reader.unexpected_token("'for', 'block' or 'if'")
    reader.expect_kind("dedent", "the end of the indented lines")
    if not stmts:
        raise reader.unexpected_token("'for', 'block' or 'if'")
    return seq(*stmts)


def _parse_if(reader: ExprParser) -> If:
    condition = reader.expression()
    _expect_indent(reader, "a condition")
    then = _parse_statements(reader)
    if not reader.accept("else"):
        return If(condition, then, NOTHING)
    _expect_indent(reader, "'else'")
    return If(condition, then, _parse_statements(reader))


def _parse_loop(reader: ExprParser) -> For:
    name = reader.name("the name of a loop variable")
    reader.expect("in", "after the loop variable")
    word = reader.expect_kind("name", "a kind of loop")
    if word.text not in [k.value for k in LoopKind]:
        raise parse_error(f"expected a kind of loop ({', '.join(LoopKind)}), got {word}", word)
    reader.expect("(", "before the extent")
    extent = reader.expression()
    reader.expect(")", "after the extent")
    var = _declare(reader, Var(name))
    prefetches = _parse_prefetches(reader) if reader.accept("prefetching") else ()
    _expect_indent(reader, "the loop's header")
    return For(var, extent, LoopKind(word.text), _parse_statements(reader), prefetches)


def _parse_prefetches(reader: ExprParser) -> tuple[Load, ...]:
    prefetches: list[Load] = []
    while not prefetches or reader.accept(","):
        token = reader.current
        prefetches.append(reader.load(token, reader.name("an element to prefetch")))
    return tuple(prefetches)


def _parse_block(reader: ExprParser) -> Block:
    name = reader.name("the name of a block")
    reader.expect("(", "after the block's name")
    iters: list[BlockIter] = []
    while not reader.is_at(")"):
        kind = IterKind.REDUCE if reader.accept("reduce") else IterKind.SPATIAL
        var = reader.name("the name of an iteration variable")
        reader.expect(":", "after an iteration variable")
        extent = reader.expression()
        reader.expect("=", "after the extent of an iteration variable")
        iters.append(BlockIter(_declare(reader, Var(var)), extent, kind, reader.expression()))
        if not reader.accept(","):
            break
    reader.expect(")", "after the iteration variables")
    predicate = reader.expression() if reader.accept("where") else TRUE
    _expect_indent(reader, "the block's header")
    init = _parse_store(reader) if reader.accept("init") else None
    body = _parse_store(reader)
    reader.expect_kind("dedent", "nothing more in a block")
    return Block(name, tuple(iters), body, init, predicate)


def _parse_store(reader: ExprParser) -> Store:
    token = reader.current
    name = reader.name("a store `buffer[indices] = value`")
    target = reader.load(token, name)
    reader.expect("=", "after the element that is stored")
    value = reader.expression()
    _expect_line_end(reader)
    return Store(target.buffer, target.indices, value)
