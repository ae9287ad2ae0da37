"""Memory of a step tree: blocks with reference counts in a list, so that a tree that fails can free all of them.

A block has a header of one cache line in front of its data, with the words of `machine.tree_call.BLOCK_WORDS`.

Values that are no blocks (inputs, weights) have a null owner, which all functions here ignore.
"""

from llvmlite import ir

from tilewright.codegen.llvm_types import I8, I64, PTR, VOID, declare
from tilewright.machine.alignment import BUFFER_ALIGNMENT, GUARD_BYTES
from tilewright.machine.memory_advice import HUGE_PAGE_BYTES, HUGEPAGE, POPULATE_WRITE
from tilewright.machine.tree_call import BLOCK_WORDS, STATE_WORDS

_BASE, _NEXT, _LINK, _BYTES = (BLOCK_WORDS.index(name) for name in ("base", "next", "link", "bytes"))
_EXTRA = 2 * BUFFER_ALIGNMENT + GUARD_BYTES
"""Bytes of a block besides its data: the header, what alignment skips, and the guard."""

_INT = ir.IntType(32)

_PREFAULTED_BYTES = 1 << 17
"""From this size on memory is prefaulted; smaller memory is mostly what was freed before, and mapped already."""


class TreeMemory:
    """The functions of a module that allocate and free; `list` is the address of the word with the first block."""

    def __init__(self, module: ir.Module) -> None:
        self._malloc = declare(module, "malloc", PTR, [I64])
        self._free = declare(module, "free", VOID, [PTR])
        self.prefault = self._define_prefault(module)
        self.allocate = self._define_allocate(module)
        self.release = self._define_release(module)
        self.release_all = self._define_release_all(module)

    def retain(self, b: ir.IRBuilder, owner: ir.Value) -> None:
        """One more reference to a value's block."""
        if is_null(owner):
            return
        with b.if_then(b.icmp_unsigned("!=", owner, PTR(None))):
            count = _header(b, owner, 0)
            b.store(b.add(b.load(count, typ=I64), I64(1)), count)

    def grow(self, b: ir.IRBuilder, memory: ir.Value, size: ir.Value) -> ir.Value:
        """Frees memory and allocates other, of undefined content; null where there is not enough."""
        b.call(self._free, [memory])
        return b.call(self._malloc, [size])

    def _define_allocate(self, module: ir.Module) -> ir.Function:
        """`ptr allocate(state, bytes)`: the data of a new block with one reference; null without enough memory."""
        function, b = _start_function(module, "tree.allocate", PTR, [PTR, I64])
        state, size = function.args
        blocks = state_word(b, state, "blocks")
        base = b.call(self._malloc, [b.add(size, I64(_EXTRA))])
        with b.if_then(b.icmp_unsigned("==", base, PTR(None)), likely=False):
            b.ret(PTR(None))
        after = b.add(b.ptrtoint(base, I64), I64(2 * BUFFER_ALIGNMENT - 1))
        data = b.inttoptr(b.and_(after, I64(-BUFFER_ALIGNMENT)), PTR)
        following = b.load(blocks, typ=PTR)
        b.store(I64(1), _header(b, data, 0))
        b.store(base, _header(b, data, _BASE))
        b.store(following, _header(b, data, _NEXT))
        b.store(blocks, _header(b, data, _LINK))
        b.store(size, _header(b, data, _BYTES))
        with b.if_then(b.icmp_unsigned("!=", following, PTR(None))):
            b.store(_header(b, data, _NEXT), _header(b, following, _LINK))
        b.store(data, blocks)
        b.ret(data)
        return function

    def _define_prefault(self, module: ir.Module) -> ir.Function:
        """`void prefault(state, address, bytes)`: maps the pages of large memory that will be written, huge ones where
        the system has them. Otherwise the system finds and clears one at a time, as slowly as many kernels compute."""
        function, b = _start_function(module, "tree.prefault", VOID, [PTR, PTR, I64])
        state, address, size = function.args
        advise = b.load(state_word(b, state, "advise"), typ=ir.FunctionType(_INT, [PTR, I64, _INT]).as_pointer())
        is_known = b.icmp_unsigned("!=", b.ptrtoint(advise, I64), I64(0))
        with b.if_then(b.and_(is_known, b.icmp_signed(">=", size, I64(_PREFAULTED_BYTES))), likely=False):
            page = b.load(state_word(b, state, "page_bytes"), typ=I64)
            at = b.ptrtoint(address, I64)
            start = b.and_(at, b.neg(page))
            length = b.sub(b.add(at, size), start)
            with b.if_then(b.icmp_signed(">=", size, I64(HUGE_PAGE_BYTES))):
                b.call(advise, [b.inttoptr(start, PTR), length, _INT(HUGEPAGE)])
            b.call(advise, [b.inttoptr(start, PTR), length, _INT(POPULATE_WRITE)])
        b.ret_void()
        return function

    def _define_release(self, module: ir.Module) -> ir.Function:
        """`void release(owner)`: one reference less; without any the block is freed."""
        function, b = _start_function(module, "tree.release", VOID, [PTR])
        owner = function.args[0]
        with b.if_then(b.icmp_unsigned("!=", owner, PTR(None))):
            count = _header(b, owner, 0)
            left = b.sub(b.load(count, typ=I64), I64(1))
            b.store(left, count)
            with b.if_then(b.icmp_signed("==", left, I64(0))):
                following, link = (b.load(_header(b, owner, k), typ=PTR) for k in (_NEXT, _LINK))
                b.store(following, link)
                with b.if_then(b.icmp_unsigned("!=", following, PTR(None))):
                    b.store(link, _header(b, following, _LINK))
                b.call(self._free, [b.load(_header(b, owner, _BASE), typ=PTR)])
        b.ret_void()
        return function

    def _define_release_all(self, module: ir.Module) -> ir.Function:
        """`void release_all(list)`: frees every block."""
        function, b = _start_function(module, "tree.release_all", VOID, [PTR])
        head, body, end = (b.append_basic_block(name) for name in ("head", "body", "end"))
        b.branch(head)
        b.position_at_end(head)
        block = b.load(function.args[0], typ=PTR)
        b.cbranch(b.icmp_unsigned("!=", block, PTR(None)), body, end)
        b.position_at_end(body)
        b.store(b.load(_header(b, block, _NEXT), typ=PTR), function.args[0])
        b.call(self._free, [b.load(_header(b, block, _BASE), typ=PTR)])
        b.branch(head)
        b.position_at_end(end)
        b.ret_void()
        return function


def is_null(owner: ir.Value) -> bool:
    """Whether a value is known not to be a block."""
    return isinstance(owner, ir.Constant)


def round_up(b: ir.IRBuilder, size: ir.Value) -> ir.Value:
    """The next multiple of a buffer's alignment."""
    return b.and_(b.add(size, I64(BUFFER_ALIGNMENT - 1)), I64(-BUFFER_ALIGNMENT))


def _header(b: ir.IRBuilder, data: ir.Value, word: int) -> ir.Value:
    """The address of a word of a block's header."""
    return b.gep(data, [I64(8 * word - BUFFER_ALIGNMENT)], source_etype=I8)


def state_word(b: ir.IRBuilder, state: ir.Value, name: str) -> ir.Value:
    """The address of a word of the state (`machine.tree_call.STATE_WORDS`)."""
    return b.gep(state, [I64(STATE_WORDS.index(name))], source_etype=I64)


def _start_function(
    module: ir.Module, name: str, result: ir.Type, kinds: list[ir.Type]
) -> tuple[ir.Function, ir.IRBuilder]:
    function = ir.Function(module, ir.FunctionType(result, kinds), name)
    function.linkage = "internal"
    function.attributes.add("nounwind")
    return function, ir.IRBuilder(function.append_basic_block("entry"))
