"""The function of a step tree: segments in order, data-dependent sizes, branches and loops around them.

Values are blocks with reference counts (`tree_memory`), as a branch may return what it captures, and an iteration what
it is given. Whatever is wrong with sizes or data ends the call with the status `TREE_FAILED`.
"""

from collections.abc import Sequence

from llvmlite import ir

from tilewright.codegen.emit_tree_loop import emit_tree_loop
from tilewright.codegen.llvm_types import I8, I64, PTR
from tilewright.codegen.step_tree import (
    BindStep,
    BranchStep,
    RepeatStep,
    SegmentStep,
    StepTree,
    TreeBlock,
    TreeStep,
    all_blocks,
)
from tilewright.codegen.tree_memory import TreeMemory, round_up
from tilewright.codegen.tree_values import Sizes, TreeData, TreeFunction, Values
from tilewright.errors import InternalError
from tilewright.machine.alignment import BUFFER_ALIGNMENT, GUARD_BYTES
from tilewright.machine.tree_call import OK, OK_WITH_MEMORY


def emit_step_tree(module: ir.Module, tree: StepTree) -> None:
    """Adds a step tree to a module that has the entries of its segments: `int64 <name>(inputs, outputs, weights, state,
    symbols, threads)`.

    Raises:
        InternalError: a segment is unknown.
    """
    memory = TreeMemory(module)
    function = ir.Function(module, ir.FunctionType(I64, [PTR] * 5 + [I64]), tree.name)
    for argument, name in zip(
        function.args, ("inputs", "outputs", "weights", "state", "symbols", "threads"), strict=True
    ):
        argument.name = name
    function.attributes.add("nounwind")
    symbols = {s.name: s for block in all_blocks(tree.block) for s in block.symbols}
    _TreeEmitter(TreeFunction(function, memory, symbols), tree).emit()


class _TreeEmitter:
    """Emits the steps of one tree."""

    def __init__(self, f: TreeFunction, tree: StepTree) -> None:
        self.f, self.tree = f, tree

    def emit(self) -> None:
        """Emits the whole function."""
        f, tree, block = self.f, self.tree, self.tree.block
        b, (inputs, outputs, _, _, symbols, _) = f.builder, f.function.args
        sizes: Sizes = {name: b.load(f.word(symbols, k), typ=I64, name="size") for k, name in enumerate(tree.symbols)}
        b.store(I64(0), f.state_word("used_bytes"))
        values: Values = {}
        for k, value in enumerate(block.inputs):
            given = tuple(I64(d) if isinstance(d, int) else sizes[str(d)] for d in value.dims)
            values[value.name] = TreeData(b.load(f.word(inputs, k), typ=PTR), PTR(None), given)
        results = self.block(block, values, sizes)
        self._return_results(results, outputs)
        f.finish()

    def _return_results(self, results: Sequence[TreeData], outputs: ir.Value) -> None:
        """Stores where results are, and copies them to the memory for results where all have room there."""
        f, b = self.f, self.f.builder
        element_bytes = {v.name: v.bytes for step in self.tree.block.steps for v in step.outputs}
        element_bytes |= {v.name: v.bytes for v in self.tree.block.inputs}
        element_bytes |= {v.name: v.bytes for v, _ in self.tree.block.constants}
        total, lengths = I64(0), list[ir.Value]()
        for name, data in zip(self.tree.block.outputs, results, strict=True):
            lengths.append(f.product(data.sizes, element_bytes[name]))
            total = b.add(total, round_up(b, lengths[-1]))
        word = 0
        for data in results:
            for value in (b.ptrtoint(data.pointer, I64), *data.sizes):
                b.store(value, f.word(outputs, word))
                word += 1
        room = b.load(f.state_word("result_bytes"), typ=I64)
        is_small = b.icmp_signed("<=", total, room)
        with b.if_then(is_small):
            place, word = b.load(f.state_word("results"), typ=PTR), 0
            for data, length in zip(results, lengths, strict=True):
                f.copy(place, data.pointer, length)
                b.store(b.ptrtoint(place, I64), f.word(outputs, word))
                place, word = b.gep(place, [round_up(b, length)], source_etype=I8), word + 1 + len(data.sizes)
            b.call(f.memory.release_all, [f.blocks])
        larger = b.load(f.state_word("larger"), typ=I64)
        is_all = b.and_(is_small, b.icmp_signed("==", larger, I64(0)))
        b.ret(b.select(is_all, I64(OK), I64(OK_WITH_MEMORY)))

    def block(self, block: TreeBlock, values: Values, sizes: Sizes) -> list[TreeData]:
        """Emits a block; its results have a reference each.

        Args:
            block: the block.
            values: its inputs by name.
            sizes: of the symbols outside.
        """
        f, sizes = self.f, dict(sizes)
        if block.symbols and block is not self.tree.block:
            for value in block.inputs:
                f.bind(value.dims, values[value.name], sizes)
        values = dict(values)
        for constant, index in block.constants:
            pointer = f.builder.load(f.word(f.function.args[2], index), typ=PTR)
            values[constant.name] = TreeData(pointer, PTR(None), tuple(I64(int(d or 0)) for d in constant.dims))
        owned: dict[str, ir.Value] = {}
        for step, dead in zip(block.steps, block.dead, strict=True):
            results = self._step(step, values, sizes)
            for output, data in zip(step.outputs, results, strict=True):
                values[output.name] = data
                owned[output.name] = data.owner
            for name in dead:
                if name in owned:
                    f.release(owned.pop(name))
        returned = [values[name] for name in block.outputs]
        for data in returned:
            f.memory.retain(f.builder, data.owner)
        for owner in owned.values():
            f.release(owner)
        return returned

    def _step(self, step: TreeStep, values: Values, sizes: Sizes) -> list[TreeData]:
        match step:
            case SegmentStep():
                return self._segment(step, values, sizes)
            case BindStep():
                self._bind(step, values, sizes)
                return []
            case BranchStep():
                results = self._branch(step, values, sizes)
            case RepeatStep():
                results = emit_tree_loop(self.f, step, values, sizes, self.block)
        for output, data in zip(step.outputs, results, strict=True):
            self.f.bind(output.dims, data, sizes)
        return results

    def _bind(self, step: BindStep, values: Values, sizes: Sizes) -> None:
        f, data = self.f, values[step.inputs[0].name]
        for name, position in zip(step.symbols, step.positions, strict=True):
            f.bind_symbol(name, f.builder.load(f.word(data.pointer, position), typ=I64), sizes)

    def _segment(self, step: SegmentStep, values: Values, sizes: Sizes) -> list[TreeData]:
        f, b = self.f, self.f.builder
        threads = f.function.args[5]
        for value in step.inputs:
            f.bind(value.dims, values[value.name], sizes)
        symbols = f.slot(I64, len(step.symbols))
        for k, name in enumerate(step.symbols):
            b.store(sizes[name], f.word(symbols, k))
        f.fail_if(b.icmp_signed("!=", self._call(step, "check", [symbols, threads]), I64(0)))
        flat = f.slot(I64, sum(len(v.dims) for v in step.outputs))
        self._call(step, "shapes", [symbols, flat])
        position, results = 0, list[TreeData]()
        for value in step.outputs:
            given = tuple(
                I64(d) if isinstance(d, int) else b.load(f.word(flat, position + k), typ=I64)
                for k, d in enumerate(value.dims)
            )
            position += len(value.dims)
            size = f.product(given, value.bytes)
            data = f.allocate(size)
            b.call(f.memory.prefault, [f.state, data, size])
            results.append(TreeData(data, data, given))
        workspace = self._workspace(self._call(step, "workspace", [symbols, threads]))
        inputs, outputs = f.slot(PTR, len(step.inputs)), f.slot(PTR, len(results))
        for k, value in enumerate(step.inputs):
            b.store(values[value.name].pointer, f.word(inputs, k))
        for k, data in enumerate(results):
            b.store(data.pointer, f.word(outputs, k))
        weights = b.load(f.word(f.function.args[2], step.weights), typ=PTR)
        status = self._call(step, "main", [inputs, outputs, weights, workspace, symbols, threads])
        f.fail_if(b.icmp_signed("!=", status, I64(0)))
        return results

    def _call(self, step: SegmentStep, what: str, arguments: Sequence[ir.Value]) -> ir.Value:
        function = self.f.builder.module.globals.get(f"{step.prefix}_{what}")
        if not isinstance(function, ir.Function):
            raise InternalError(f"a step tree calls the unknown segment '{step.prefix}'")
        # where no size depends on the number of threads, functions do not take it
        return self.f.builder.call(function, list(arguments)[: len(function.args)])

    def _workspace(self, size: ir.Value) -> ir.Value:
        """The workspace, of at least so many bytes: one for all segments, since they run one after the other."""
        f, b = self.f, self.f.builder
        place, room, used, larger = (
            f.state_word(name) for name in ("workspace", "workspace_bytes", "used_bytes", "larger")
        )
        most = b.load(used, typ=I64)
        b.store(b.select(b.icmp_signed(">", size, most), size, most), used)
        with b.if_then(b.icmp_signed(">", size, b.load(room, typ=I64)), likely=False):
            # more than needed only the second time: sizes grow from iteration to iteration
            old = b.load(larger, typ=PTR)
            extra = b.select(b.icmp_unsigned("==", old, PTR(None)), I64(0), b.lshr(size, I64(1)))
            capacity = b.add(size, extra)
            memory = f.memory.grow(b, old, b.add(capacity, I64(BUFFER_ALIGNMENT + GUARD_BYTES)))
            is_missing = b.icmp_unsigned("==", memory, PTR(None))
            b.store(memory, larger)
            b.store(b.select(is_missing, I64(0), capacity), room)
            f.fail_if(is_missing)
            start = round_up(b, b.ptrtoint(memory, I64))
            b.store(start, place)
            b.call(f.memory.prefault, [f.state, memory, capacity])
        return b.load(place, typ=PTR)

    def _branch(self, step: BranchStep, values: Values, sizes: Sizes) -> list[TreeData]:
        f, b = self.f, self.f.builder
        slots = [f.data_slot(len(v.dims)) for v in step.outputs]
        with b.if_else(f.is_true(values[step.condition])) as arms:
            for arm, block in zip(arms, step.blocks, strict=True):
                with arm:
                    captured = zip(block.inputs, block.captures, strict=True)
                    inner = {value.name: values[name] for value, name in captured}
                    for data, slot in zip(self.block(block, inner, sizes), slots, strict=True):
                        f.store(data, slot)
        return [f.load(slot) for slot in slots]
