"""The statements of a tile tree as plain numbers: what every nest of loops computes, and where it stores its results.

A reduction with its partial sums, its copies and an element-wise epilogue in the same tiles is one statement, as they
share their register tiles. Copies of operands that are no panels, and sums of partial sums beyond the innermost ones,
are statements of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from tilewright.cost.trees.online_sums import rescaling_problem, store_problem, with_finished_factors_apart
from tilewright.expr.dtype import boolean, int64
from tilewright.expr.nodes import Const, Expr, Load, MemoryScope, Var
from tilewright.expr.traversal import free_vars, loads, post_order
from tilewright.loops.ir import Block, Func, LoopKind, Seq, Stmt, blocks
from tilewright.schedule.rewrite_tree import top_statements
from tilewright.schedule.schedule import Schedule
from tilewright.tile.operand import Operand
from tilewright.tile.operation_cost import operation_cost
from tilewright.tile.problem import Problem, ProblemAxis, extract_problem
from tilewright.tile.shape_samples import ShapeSamples
from tilewright.tile.statements import statements_of
from tilewright.tile.tree import CacheRead, CacheWrite, Inline, Pack, RFactor, Staging, TileTree
from tilewright.tile.tree_sizes import LoopStep, StatementPath

PRIVATE_SCOPES = (MemoryScope.STACK, MemoryScope.REGISTER)


@dataclass(frozen=True, slots=True)
class TreeStatement:
    """What a nest of loops computes.

    Attributes:
        name: of the block, or of the copy.
        main: the tree's name of the statement whose loops are those of the register tiles.
        problem: iteration space and accesses; intermediates on the stack are private.
        axes: per axis of the problem its name in the tree.
        buffer: the internal buffer that it writes, or the result.
        stored: per dimension of that buffer the axis that indexes it alone; None for others.
        packed: (operand, axis) of the panels that it reads.
        panels: the operand of every packed copy.
        partial_sums: levels of partial sums.
        is_online: whether it is rescaled in a loop that it reduces along.
        shared_operations: (instructions, axes) of operations that a register tile does not repeat along other axes.
        is_sum: whether it adds partial sums to those of an outer level, or rescales an online sum.
        is_rescaling: whether it rescales an online sum, once per iteration of the loop that the sum is fused into.
    """

    name: str
    main: str
    problem: Problem
    axes: tuple[str, ...]
    buffer: str
    stored: tuple[str | None, ...]
    packed: tuple[tuple[int, int], ...] = ()
    panels: Mapping[str, int] | None = None
    partial_sums: int = 0
    is_online: bool = False
    shared_operations: tuple[tuple[int, frozenset[int]], ...] = ()
    is_sum: bool = False
    is_rescaling: bool = False


def tree_statements(
    tree: TileTree, func: Func, constants: frozenset[str], shape: Mapping[Var, int], paths: Sequence[StatementPath]
) -> tuple[TreeStatement, ...] | None:
    """The statements of a tree; None where one has an access that is not affine, or no place in the tree.

    Args:
        tree: the tree.
        func: the kernel's untransformed loops.
        constants: names of parameters whose data is known at compile time.
        shape: values of the symbols.
        paths: of the tree.
    """
    extraction = _Extraction.of(tree, func, constants, shape, paths)
    found: list[TreeStatement] = []
    merged: set[str] = set()
    for b in blocks(extraction.func.body):
        if b.name in merged:
            continue
        statements = extraction.statements(b, merged)
        if statements is None:
            return None
        found += statements
    return tuple(found)


@dataclass(frozen=True)
class _Extraction:
    """Extraction in progress.

    Attributes:
        func: the kernel, after statements were inlined.
        axes: per block the tree's names of its iteration variables.
        constants, shape: see `tree_statements`.
        staging: of the tree and all parts.
        paths: of every statement's name.
        finishing: instructions per element of an online sum after the last chunk.
    """

    func: Func
    axes: Mapping[str, tuple[str, ...]]
    constants: frozenset[str]
    shape: Mapping[Var, int]
    staging: tuple[Staging, ...]
    paths: Mapping[str, Sequence[StatementPath]]
    finishing: Mapping[str, int]

    @staticmethod
    def of(
        tree: TileTree,
        func: Func,
        constants: frozenset[str],
        shape: Mapping[Var, int],
        paths: Sequence[StatementPath],
    ) -> "_Extraction":
        axes = {name: tuple(a.axis for a in x.axes) for name, x in statements_of(func).items()}
        remaining = _inline_all(func, tuple(x.statement for x in tree.staging if isinstance(x, Inline)))
        online = tuple(dict.fromkeys(x.compute.statement for x in paths if x.compute.online))
        remaining, finishing = with_finished_factors_apart(remaining, online)
        by_name: dict[str, list[StatementPath]] = {}
        for path in paths:
            by_name.setdefault(path.compute.statement, []).append(path)
        staging = dict.fromkeys(stage for path in paths for stage in path.staging)
        staging = tuple(dict.fromkeys((*tree.staging, *staging)))
        return _Extraction(remaining, axes, constants, shape, staging, by_name, finishing)

    def statements(self, block: Block, merged: set[str]) -> list[TreeStatement] | None:
        """The statements of a block; adds an epilogue that is one with it to `merged`."""
        sums = self.sums(block.name)
        if sums[-1] not in self.paths:
            return None
        epilogue = self.epilogue(block)
        problem = self.problem((block, epilogue) if epilogue is not None else (block,))
        if problem is None:
            return None
        last = block if epilogue is None else epilogue
        merged |= {last.name}
        statement = TreeStatement(
            block.name, sums[-1], problem, self.axes[block.name], last.body.buffer.name, self.stored(last),
            partial_sums=len(sums) - 1,
            is_online=self.is_online(sums[-1]),
            shared_operations=_shared_operations(block),
        )  # fmt: skip
        copies, statement = self.with_copies(statement)
        private = self.with_private_accesses(statement)
        extra = [self.sum_of_partial_sums(private, name) for name in sums[:-2]]
        if private.is_online and private.problem.reduce:
            extra += [self.rescaling(private), *self.stores_of_sums(statement, private)]
        return [*copies, private, *extra]

    def sums(self, name: str) -> list[str]:
        """A statement, the one that computes its partial sums, and so on."""
        chain = [name]
        while stage := next((x for x in self.staging if isinstance(x, RFactor) and x.statement == chain[-1]), None):
            chain.append(stage.partial)
        return chain

    def writer(self, name: str) -> str:
        """The statement that writes a block's buffer in its place: the block, or the copy of its results."""
        return next((x.copy for x in self.staging if isinstance(x, CacheWrite) and x.statement == name), name)

    def epilogue(self, block: Block) -> Block | None:
        """The element-wise reader of a reduction's results in the same tiles, where these are in registers."""
        if block.init is None:
            return None
        readers = [
            b for b in blocks(self.func.body)
            if b is not block and any(x.buffer == block.body.buffer for x in loads(b.body.value))
        ]  # fmt: skip
        if len(readers) != 1 or readers[0].init is not None or readers[0].name not in self.paths:
            return None
        results = self.paths[self.sums(block.name)[-1]]
        if any(x.compute.scope is not MemoryScope.REGISTER for x in results):
            return None
        (reader,) = readers
        for path in self.paths[reader.name]:
            depth = max(common_depth(path, x) for x in results)
            own = [x for x in path.nodes[depth:] if isinstance(x, LoopStep)]
            is_inside = any(isinstance(x, LoopStep) for x in path.nodes[:depth])
            if not is_inside or any(x.loop.kind is LoopKind.PARALLEL for x in own):
                return None
        return reader if self.problem((block, reader)) is not None else None

    def problem(self, of: Sequence[Block]) -> Problem | None:
        """The problem of a block, or of a reduction and its epilogue."""
        return _problem_of(self.func, frozenset(b.name for b in of), self.constants, tuple(self.shape.items()))

    def stored(self, block: Block) -> tuple[str | None, ...]:
        """Per dimension of a block's buffer the axis that indexes it alone."""
        names = {i.var: axis for i, axis in zip(block.iters, self.axes[block.name], strict=True)}
        return tuple(names.get(x) if isinstance(x, Var) else None for x in block.body.indices)

    def with_copies(self, statement: TreeStatement) -> tuple[list[TreeStatement], TreeStatement]:
        """The copies of operands, and the statement that reads them instead."""
        copies: list[TreeStatement] = []
        packed: list[tuple[int, int]] = []
        panels: dict[str, int] = {}
        operands = list(statement.problem.operands)
        names = {statement.name, *self.sums(statement.name)}
        for stage in self.staging:
            if not isinstance(stage, Pack | CacheRead) or stage.statement not in names:
                continue
            for k, o in enumerate(operands):
                if o.written or o.buffer != stage.operand:
                    continue
                if isinstance(stage, Pack):
                    (axis,) = [a for a, c in enumerate(o.index[stage.dim]) if c] or [0]
                    packed.append((k, axis))
                    panels[stage.copy] = k
                    continue
                order = stage.order or tuple(range(len(o.shape)))
                shape, index = _permuted(o, order)
                operands[k] = replace(o, buffer=stage.copy, shape=shape, index=index)
                if stage.copy in self.paths and not self.is_prepacked(stage.copy, o):
                    copies.append(self.with_private_accesses(_copy_statement(stage.copy, o, order)))
        problem = replace(statement.problem, operands=tuple(operands))
        return copies, replace(statement, problem=problem, packed=tuple(packed), panels=panels)

    def is_prepacked(self, copy: str, operand: Operand) -> bool:
        """Whether the copy of an operand is made at compile time: of constants, outside of all other loops."""
        own = {f"{copy}.{d}" for d in range(len(operand.shape))}
        is_private = any(path.compute.scope in PRIVATE_SCOPES for path in self.paths[copy])
        loops = (x for path in self.paths[copy] for x in path.nodes if isinstance(x, LoopStep))
        return operand.constant and not is_private and all(x.axis in own for x in loops)

    def with_private_accesses(self, statement: TreeStatement) -> TreeStatement:
        """The statement with its accesses to buffers on the stack marked and in their layout."""
        operands, results = (
            tuple(self.private(o, statement.name) for o in x)
            for x in (statement.problem.operands, statement.problem.results)
        )
        private = [(k, -1) for k, o in enumerate((*operands, *results)) if o.private]
        problem = replace(statement.problem, operands=operands, results=results)
        return replace(statement, problem=problem, packed=(*statement.packed, *private))

    def private(self, operand: Operand, statement: str) -> Operand:
        """An access of a statement, in the layout of its buffer where that is on the stack."""
        block = next((b for b in blocks(self.func.body) if b.body.buffer.name == operand.buffer), None)
        name = operand.buffer if block is None else self.writer(block.name)
        internal = {b.name for b in self.func.allocs} | {x.copy for x in self.staging if isinstance(x, CacheRead)}
        if block is not None and name != block.name == statement and self.is_online(statement):
            # the sums have a buffer of their own until the last chunk
            operand, name = replace(operand, buffer=f"{operand.buffer}.local"), block.name
            internal |= {operand.buffer}
        if operand.buffer not in internal or name not in self.paths:
            return operand
        compute = self.paths[name][0].compute
        if compute.scope not in PRIVATE_SCOPES:
            return operand
        order = list(range(len(operand.shape)))
        if block is not None and compute.lane_axis in self.stored(block):
            dim = self.stored(block).index(compute.lane_axis)
            order = [*(d for d in order if d != dim), dim]
        shape, index = _permuted(operand, order)
        return replace(operand, shape=shape, index=index, private=True)

    def is_online(self, name: str) -> bool:
        """Whether a statement is a sum that is rescaled while it is summed up, or a value that such sums read."""
        return name in self.paths and self.paths[name][0].compute.online

    def rescaling(self, statement: TreeStatement) -> TreeStatement:
        """Rescaling an online sum in its place, before the terms of a chunk are added."""
        p, around = statement.problem, self.around_chunks(statement)
        shared = prod(p.axes[k].extent for k in p.spatial if statement.axes[k] not in around)
        added = self.sum_of_partial_sums(statement, statement.main)
        problem = rescaling_problem(added.problem, p.results[-1].buffer, shared)
        return replace(added, problem=problem, packed=((0, -1), (1, -1)), is_rescaling=True)

    def around_chunks(self, statement: TreeStatement) -> frozenset[str]:
        """Axes of the loops around that over the chunks of an online sum's reduction."""
        reduced = {statement.axes[k] for k in statement.problem.reduce}
        nodes = [x.axis for x in self.paths[statement.main][0].nodes]
        return frozenset(nodes[: next((k for k, a in enumerate(nodes) if a in reduced), len(nodes))])

    def stores_of_sums(self, statement: TreeStatement, private: TreeStatement) -> list[TreeStatement]:
        """The copy of an online sum to the kernel's result, after the last chunk; none where it stays on the stack.

        Args:
            statement: the sum, as if it were written to the result.
            private: with its own buffer.
        """
        name, p = self.writer(statement.name), statement.problem
        if name == statement.name or name not in self.paths:
            return []
        problem = store_problem(name, p, private.problem.results[-1], self.finishing.get(statement.name, 0))
        names = [statement.axes[k] for k in p.spatial]
        packed = ((0, -1),) if problem.operands[0].private else ()
        buffer = p.results[-1].buffer
        return [TreeStatement(name, name, problem, tuple(names), buffer, statement.stored, packed=packed)]

    def sum_of_partial_sums(self, statement: TreeStatement, name: str) -> TreeStatement:
        """Adding partial sums to those that a statement of the tree accumulates, or rescaling these."""
        p = statement.problem
        vectors = [
            x.axis for x in self.paths[name][0].nodes if isinstance(x, LoopStep) and x.loop.kind is LoopKind.VECTORIZED
        ]
        spatial = sorted(p.spatial, key=lambda k: statement.axes[k] in vectors)
        axes = tuple(p.axes[k] for k in spatial)
        rows = tuple(tuple(1 if a == d else 0 for a in range(len(axes))) for d in range(len(axes)))
        shape = tuple(a.extent for a in axes) or (1,)
        total = Operand(f"{name}.sums", p.bits // 8, False, shape, rows or ((),), False, private=True)
        problem = Problem(
            name, name, axes, (total, replace(total, buffer=f"{name}.partial"), replace(total, written=True)), (), 1,
            p.bits,
        )  # fmt: skip
        names = tuple(statement.axes[k] for k in spatial)
        return TreeStatement(
            f"{name}.sums",
            name,
            problem,
            names,
            f"{name}.sums",
            names,
            packed=((0, -1), (1, -1), (2, -1)),
            is_sum=True,
        )


@lru_cache(maxsize=64)
def _inline_all(func: Func, statements: tuple[str, ...]) -> Func:
    """A function with some statements inlined: the same for all trees of a kernel and at all shapes."""
    s = Schedule(func)
    for name in statements:
        s.do("inline", name)
    return s.func


@lru_cache(maxsize=256)
def _problem_of(
    func: Func, names: frozenset[str], constants: frozenset[str], shape: tuple[tuple[Var, int], ...]
) -> Problem | None:
    """The problem of some blocks of a function at a shape: the same for all trees of a kernel."""
    nests: list[Stmt] = [x for x in top_statements(func) if blocks(x)[0].name in names]
    body = nests[0] if len(nests) == 1 else Seq(tuple(nests))
    problem = extract_problem(replace(func, body=body), constants, ShapeSamples(dict(shape), ()))
    return None if problem is None else replace(problem, samples=())


def common_depth(path: StatementPath, other: StatementPath) -> int:
    """Number of loops and parts that two statements share."""
    depth = 0
    for a, b in zip(path.nodes, other.nodes, strict=False):
        if a.place != b.place:
            break
        depth += 1
    return depth


def _permuted(o: Operand, order: Sequence[int]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    return tuple(o.shape[d] for d in order), tuple(o.index[d] for d in order)


def _copy_statement(copy: str, o: Operand, order: Sequence[int]) -> TreeStatement:
    """The copy of an operand with its dimensions in another order."""
    axes = tuple(ProblemAxis(f"{copy}.{d}", o.shape[d], True, False) for d in order)
    position = {d: k for k, d in enumerate(order)}
    identity = tuple(tuple(int(k == a) for a in range(len(axes))) for k in range(len(axes)))
    source = replace(o, index=tuple(identity[position[d]] for d in range(len(axes))))
    target = Operand(copy, o.element_bytes, False, tuple(a.extent for a in axes), identity, True)
    problem = Problem(copy, copy, axes, (source, target), (), 1, 8 * o.element_bytes)
    names = tuple(a.name for a in axes)
    return TreeStatement(copy, copy, problem, names, copy, names)


def _shared_operations(block: Block) -> tuple[tuple[int, frozenset[int]], ...]:
    """Operations of a block's value that do not depend on all of its axes, with those that they depend on."""
    variables = [i.var for i in block.iters]
    found: list[tuple[int, frozenset[int]]] = []
    for e in post_order(block.body.value):
        if e.dtype in (int64, boolean) or isinstance(e, Const | Var | Load):
            continue
        used = _accessed_variables(e)
        cost = operation_cost(e).throughput
        if cost and not used.issuperset(variables):
            found.append((cost, frozenset(k for k, v in enumerate(variables) if v in used)))
    return tuple(found)


def _accessed_variables(e: Expr) -> frozenset[Var]:
    return frozenset(free_vars(e)) | frozenset(v for x in loads(e) for i in x.indices for v in free_vars(i))
