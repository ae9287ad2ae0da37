"""Values of a step tree in generated code: address, owner and sizes, and what a function keeps of them on its stack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llvmlite import ir

from tilewright.codegen.llvm_types import I1, I8, I64, PTR, VOID, as_opaque_pointer, call_intrinsic
from tilewright.codegen.step_tree import Dim, TreeSymbol
from tilewright.codegen.tree_memory import TreeMemory, is_null, state_word
from tilewright.machine.tree_call import TREE_FAILED


@dataclass(frozen=True, slots=True, eq=False)
class TreeData:
    """A value: the address of its data, the block that owns it (null for other memory), and its sizes."""

    pointer: ir.Value
    owner: ir.Value
    sizes: tuple[ir.Value, ...]


_FAILED = I64(TREE_FAILED)

Values = dict[str, TreeData]
Sizes = dict[str, ir.Value]


@dataclass(frozen=True, slots=True, eq=False)
class DataSlot:
    """Stack slots of a value that control flow changes."""

    pointer: ir.Value
    owner: ir.Value
    sizes: tuple[ir.Value, ...]


class TreeFunction:
    """The function of a step tree, with what its steps share.

    Attributes:
        builder: where instructions go.
        memory: allocation.
        state: address of the state's words.
        blocks: address of the word with the first block.
        symbols: declared symbols by name.
    """

    def __init__(self, function: ir.Function, memory: TreeMemory, symbols: Mapping[str, TreeSymbol]) -> None:
        """Args: a function without blocks, the module's allocation, and all symbols by name."""
        self.function, self.memory, self.symbols = function, memory, symbols
        self.builder = ir.IRBuilder(function.append_basic_block("entry"))
        self._failed = function.append_basic_block("failed")
        self._status = self.slot(I64)

    def slot(self, kind: ir.Type, count: int = 1) -> ir.Value:
        """Memory on the stack for the whole call: `count` elements."""
        with self.builder.goto_entry_block():
            return as_opaque_pointer(self.builder.alloca(kind, size=max(1, count)))

    def word(self, array: ir.Value, index: int) -> ir.Value:
        """The address of a word of an array of words."""
        return self.builder.gep(array, [I64(index)], source_etype=I64)

    def state_word(self, name: str) -> ir.Value:
        """The address of a word of the state (`machine.tree_call.STATE_WORDS`)."""
        return state_word(self.builder, self.state, name)

    def fail_if(self, test: ir.Value, status: ir.Value = _FAILED) -> None:
        """Ends the function with a status where a test holds."""
        b = self.builder
        if isinstance(test, ir.Constant) and test.constant in (0, False):
            return
        fails, goes_on = b.append_basic_block("fails"), b.append_basic_block("goes_on")
        b.cbranch(test, fails, goes_on)
        b.position_at_end(fails)
        b.store(status, self._status)
        b.branch(self._failed)
        b.position_at_end(goes_on)

    def finish(self) -> None:
        """Emits the end of calls that fail."""
        self.builder.position_at_end(self._failed)
        self.builder.call(self.memory.release_all, [self.blocks])
        self.builder.ret(self.builder.load(self._status, typ=I64))

    def differ(self, a: ir.Value, other: ir.Value) -> ir.Value:
        """Whether two sizes differ."""
        if a is other:
            return I1(0)
        if isinstance(a, ir.Constant) and isinstance(other, ir.Constant):
            return I1(int(a.constant != other.constant))
        return self.builder.icmp_signed("!=", a, other)

    def product(self, sizes: Sequence[ir.Value], factor: int) -> ir.Value:
        """The product of sizes and a factor."""
        known, value = factor, None
        for size in sizes:
            if isinstance(size, ir.Constant):
                known *= size.constant
            else:
                value = size if value is None else self.builder.mul(value, size)
        return I64(known) if value is None else value if known == 1 else self.builder.mul(value, I64(known))

    def bind(self, dims: Sequence[Dim], data: TreeData, sizes: Sizes) -> None:
        """Compares a value's sizes with the declared ones, which gives symbols that have no size yet theirs.

        Args:
            dims: declared sizes.
            data: the value.
            sizes: of the symbols; extended.
        """
        for dim, size in zip(dims, data.sizes, strict=True):
            match dim:
                case None:
                    pass
                case int():
                    self.fail_if(self.differ(size, I64(dim)))
                case str():
                    if dim in sizes:
                        self.fail_if(self.differ(size, sizes[dim]))
                    else:
                        self.bind_symbol(dim, size, sizes)

    def bind_symbol(self, name: str, size: ir.Value, sizes: Sizes) -> None:
        """Gives a symbol its size, which has to be in its range."""
        symbol, b = self.symbols[name], self.builder
        self.fail_if(b.icmp_signed("<", size, I64(symbol.lo)))
        if symbol.hi is not None and symbol.hi < 1 << 63:
            self.fail_if(b.icmp_signed(">", size, I64(symbol.hi)))
        sizes[name] = size

    def is_true(self, data: TreeData) -> ir.Value:
        """The bool in a value, which has to have one element."""
        self.fail_if(self.differ(self.product(data.sizes, 1), I64(1)))
        return self.builder.icmp_unsigned("!=", self.builder.load(data.pointer, typ=I8), I8(0))

    def copy(self, destination: ir.Value, source: ir.Value, size: ir.Value) -> None:
        """Copies bytes between memory that does not overlap."""
        call_intrinsic(self.builder, "memcpy.p0.p0.i64", VOID, [destination, source, size, I1(0)])

    def allocate(self, size: ir.Value) -> ir.Value:
        """A new block of so many bytes with one reference."""
        data = self.builder.call(self.memory.allocate, [self.state, size])
        self.fail_if(self.builder.icmp_unsigned("==", data, PTR(None)))
        return data

    def release(self, owner: ir.Value) -> None:
        """One reference less to a value's block."""
        if not is_null(owner):
            self.builder.call(self.memory.release, [owner])

    def data_slot(self, rank: int) -> DataSlot:
        """Stack slots of a value with so many sizes."""
        return DataSlot(self.slot(PTR), self.slot(PTR), tuple(self.slot(I64) for _ in range(rank)))

    def store(self, data: TreeData, into: DataSlot) -> None:
        """Keeps a value, without a new reference."""
        b = self.builder
        b.store(data.pointer, into.pointer)
        b.store(data.owner, into.owner)
        for size, place in zip(data.sizes, into.sizes, strict=True):
            b.store(size, place)

    def load(self, slot: DataSlot) -> TreeData:
        """The value that was kept."""
        b = self.builder
        pointer, owner = (b.load(x, typ=PTR) for x in (slot.pointer, slot.owner))
        return TreeData(pointer, owner, tuple(b.load(x, typ=I64) for x in slot.sizes))

    @property
    def state(self) -> ir.Value:
        """The address of the state."""
        return self.function.args[3]

    @property
    def blocks(self) -> ir.Value:
        """The address of the word with the first block."""
        return self.state_word("blocks")
