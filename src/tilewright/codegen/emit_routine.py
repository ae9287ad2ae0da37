"""LLVM functions of routines: the statements of a Python function of the subset, on typed buffers.

A specialization of a routine for element types is one internal function,
`int64 name(ptr buffer, int64 length, ..., int64 scalars...)`, which returns the routine's status, or `OUT_OF_BOUNDS`
where an index is wrong. Functions that it calls are inlined unless they have nested loops; in these, a wrong index
sets a flag that callers look at.
"""

import ast
from collections.abc import Mapping, Sequence
from types import FunctionType

from llvmlite import ir

from tilewright.codegen.arith import Arith
from tilewright.codegen.hoist_index_checks import HoistedChecks, hoist_index_checks
from tilewright.codegen.llvm_types import I64, PTR, as_opaque_pointer, register_type, scalar_loop
from tilewright.codegen.routine_exprs import BufferValue, RoutineExprs, Typed, loaded_type
from tilewright.codegen.segment import RoutineCode
from tilewright.errors import InternalError
from tilewright.expr.dtype import DType, boolean, float64, int64
from tilewright.machine import Target
from tilewright.routine import intrinsics
from tilewright.routine.routine import module_names, parse_function

OUT_OF_BOUNDS = -2
"""The status of a routine that used a wrong index."""

ROUTINE_PREFIX = "routine."
"""How the names of all functions of routines begin."""

Argument = Typed | BufferValue


def emit_routine(module: ir.Module, code: RoutineCode, target: Target) -> ir.Function:
    """The function of a routine for element types, defined at its first use in the module.

    Raises:
        InternalError: the function leaves the subset; names the line.
    """
    name = f"{ROUTINE_PREFIX}{code.name}"
    existing = module.globals.get(name)
    if isinstance(existing, ir.Function):
        return existing
    kinds = [kind for _ in code.dtypes for kind in (PTR, I64)] + [I64] * len(code.routine.scalars)
    function = ir.Function(module, ir.FunctionType(I64, kinds), name)
    function.linkage = "internal"
    function.attributes.add("nounwind")
    buffers = [
        BufferValue(dtype, function.args[2 * k], function.args[2 * k + 1]) for k, dtype in enumerate(code.dtypes)
    ]
    for k in range(len(buffers)):
        function.args[2 * k].add_attribute("noalias")
    scalars = [Typed(int64, a) for a in function.args[2 * len(buffers) :]]
    names = (*code.routine.buffers, *code.routine.scalars)
    values = dict(zip(names, [*buffers, *scalars], strict=True))
    emitter = _FunctionBody(code.routine.function, function, values, int64, target, None)
    emitter.emit()
    return function


class _FunctionBody:
    """Emits one Python function.

    Args:
        source: the Python function.
        function: receives the code.
        values: of its parameters by name.
        result: type of its result.
        target: what the code runs on.
        flag: pointer to the i64 that a wrong index sets, in a function that a routine calls; None in a routine itself.
        may_alias: whether several of the buffers may be the same one.
    """

    def __init__(
        self,
        source: FunctionType,
        function: ir.Function,
        values: Mapping[str, Argument],
        result: DType,
        target: Target,
        flag: ir.Value | None,
        may_alias: bool = False,
    ) -> None:
        self.source, self.function, self.target, self.flag = source, function, target, flag
        self.may_alias = may_alias
        self.entry = function.append_basic_block("entry")
        self.builder = ir.IRBuilder(function.append_basic_block("body"))
        self.arith = Arith(self.builder, target, with_fma=False)
        self.buffers = {n: v for n, v in values.items() if isinstance(v, BufferValue)}
        self.variables: dict[str, tuple[DType, ir.Value]] = {}
        self.exprs = RoutineExprs(self.builder, self.arith, self._name, self.buffers, self._check_index, self._call)
        self.loops: list[tuple[ir.Block, ir.Block]] = []
        self.unchecked: frozenset[int] = frozenset()
        self.result = result
        self._slot: ir.Value | None = flag
        for name, value in values.items():
            if isinstance(value, Typed):
                self._assign_name(name, value)

    def emit(self) -> None:
        """The whole function."""
        body = self.builder.block
        self._statements(parse_function(self.source).body)
        if not self.builder.block.is_terminated:
            self.builder.ret(ir.Constant(register_type(self.result), 0))
        ir.IRBuilder(self.entry).branch(body)

    def _outside_of_subset(self, what: str, node: ast.AST) -> InternalError:
        line = getattr(node, "lineno", 0)
        return InternalError(what, where=f"routine {self.source.__name__}, line {line}: {ast.unparse(node)}")

    # statements

    def _statements(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            if self.builder.block.is_terminated:
                return
            self._statement(statement)

    def _statement(self, s: ast.stmt) -> None:
        match s:
            case ast.Pass() | ast.Expr(ast.Constant(str())):
                pass
            case ast.Expr(ast.Call() as call):
                self.exprs.value(call)
            case ast.Assign([target], value):
                self._assign(target, value)
            case ast.Assign():
                raise self._outside_of_subset("assign to one name or element at a time", s)
            case ast.AugAssign(target, op, value):
                self._write(target, self.exprs.value(ast.BinOp(target, op, value)))
            case ast.If(test, then, otherwise):
                self._if(test, then, otherwise)
            case ast.While(test, body, []):
                self._while(test, body)
            case ast.For(ast.Name(name), ast.Call(ast.Name("range"), arguments), body, []):
                self._for(name, [self.exprs.integer(a) for a in arguments], body)
            case ast.Return(value):
                self._return(value)
            case ast.Break():
                self.builder.branch(self.loops[-1][1])
            case ast.Continue():
                self.builder.branch(self.loops[-1][0])
            case _:
                raise self._outside_of_subset("no statement of routines", s)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            values = [self.exprs.value(v) for v in value.elts]
            for t, v in zip(target.elts, values, strict=True):
                self._write(t, v)
        else:
            self._write(target, self.exprs.value(value))

    def _write(self, target: ast.expr, value: Typed) -> None:
        match target:
            case ast.Name(name):
                self._assign_name(name, value)
            case ast.Subscript(ast.Name(name), index) if name in self.buffers:
                buffer = self.buffers[name]
                address = self.exprs.address(buffer, index)
                stored = self.exprs.to_element(buffer.dtype, value)
                self.builder.store(stored, address, align=buffer.dtype.bytes)
            case _:
                raise self._outside_of_subset("cannot be assigned to", target)

    def _assign_name(self, name: str, value: Typed) -> None:
        if name not in self.variables:
            slot = as_opaque_pointer(self._alloca(register_type(value.dtype)))
            self.variables[name] = value.dtype, slot
        dtype, slot = self.variables[name]
        if dtype is boolean and value.dtype is not boolean:
            # Python would keep the number, of which only whether it is 0 is left here
            what = f"{name!r} is a bool, and is assigned a value of type {value.dtype}; use another name"
            raise InternalError(what, where=f"routine {self.source.__name__}")
        self.builder.store(self.exprs.converted(value, dtype), slot)

    def _alloca(self, kind: ir.Type) -> ir.Value:
        entry = ir.IRBuilder(self.entry)
        slot = entry.alloca(kind)
        # a name that no path has assigned to is 0
        entry.store(ir.Constant(kind, 0), as_opaque_pointer(slot))
        return slot

    def _name(self, name: str) -> Typed | None:
        if name in self.variables:
            dtype, slot = self.variables[name]
            return Typed(dtype, self.builder.load(slot, typ=register_type(dtype)))
        number = module_names(self.source).get(name)
        return self.exprs.literal(number) if isinstance(number, bool | int | float) else None

    def _blocks(self, *names: str) -> list[ir.Block]:
        return [self.function.append_basic_block(n) for n in names]

    def _if(self, test: ast.expr, then: Sequence[ast.stmt], otherwise: Sequence[ast.stmt]) -> None:
        first, second, after = self._blocks("then", "else", "after")
        self.builder.cbranch(self.exprs.condition(test), first, second)
        for block, body in ((first, then), (second, otherwise)):
            self.builder.position_at_end(block)
            self._statements(body)
            if not self.builder.block.is_terminated:
                self.builder.branch(after)
        self.builder.position_at_end(after)

    def _while(self, test: ast.expr, body: Sequence[ast.stmt]) -> None:
        head, inside, after = self._blocks("while", "body", "after")
        self.builder.branch(head)
        self.builder.position_at_end(head)
        self.builder.cbranch(self.exprs.condition(test), inside, after)
        (back,) = self._blocks("again")
        self._loop_body(inside, back, after, body, back)
        self.builder.position_at_end(back)
        self.builder.branch(head).set_metadata("llvm.loop", scalar_loop(self.function.module))
        self.builder.position_at_end(after)

    def _loop_body(
        self, inside: ir.Block, following: ir.Block, after: ir.Block, body: Sequence[ast.stmt], latch: ir.Block
    ) -> None:
        self.builder.position_at_end(inside)
        self.loops.append((following, after))
        self._statements(body)
        self.loops.pop()
        if not self.builder.block.is_terminated:
            self.builder.branch(latch)
        self.builder.position_at_end(after)

    def _for(self, name: str, bounds: Sequence[ir.Value], body: Sequence[ast.stmt]) -> None:
        b = self.builder
        start, stop = bounds[:2] if len(bounds) > 1 else (I64(0), bounds[0])
        step = bounds[2] if len(bounds) > 2 else I64(1)
        if not isinstance(step, ir.Constant) or not step.constant:
            raise InternalError("expected a literal step of a range", where=f"routine {self.source.__name__}")
        hoisted = hoist_index_checks(name, body)
        head, inside, advance, after = self._blocks("for", "body", "next", "after")
        if hoisted.checks:
            guard, entry = self._blocks("guard", "entry")
            b.cbranch(b.icmp_signed("<" if step.constant > 0 else ">", start, stop), guard, after)
            b.position_at_end(guard)
            self._leave_unless(self._hoisted_checks(name, (start, stop, step), hoisted), entry)
        counter = as_opaque_pointer(self._alloca(I64))
        b.store(start, counter)
        b.branch(head)
        b.position_at_end(head)
        current = b.load(counter, typ=I64)
        b.cbranch(b.icmp_signed("<" if step.constant > 0 else ">", current, stop), inside, after)
        b.position_at_end(advance)
        # a separate counter, so that the body may assign to the name
        b.store(b.add(b.load(counter, typ=I64), step, flags=("nsw",)), counter)
        back = b.branch(head)
        if not hoisted.is_vectorizable:
            back.set_metadata("llvm.loop", scalar_loop(self.function.module))
        b.position_at_end(inside)
        self._assign_name(name, Typed(int64, current))
        outer, self.unchecked = self.unchecked, hoisted.unchecked
        self._loop_body(inside, advance, after, body, advance)
        self.unchecked = outer

    def _hoisted_checks(
        self, name: str, bounds: tuple[ir.Value, ir.Value, ir.Constant], hoisted: HoistedChecks
    ) -> ir.Value:
        """Whether the linear indices of a loop of at least one iteration are in bounds in all of them."""
        b, (start, stop, step) = self.builder, bounds
        distance = b.sub(stop, start)
        last = b.sdiv(b.sub(distance, I64(1 if step.constant > 0 else -1)), step)
        ends: list[list[ir.Value]] = []
        for at in (start, b.add(start, step)):
            self._assign_name(name, Typed(int64, at))
            ends.append([self.exprs.integer(index) for _, index in hoisted.checks])
        result: ir.Value = ir.Constant(ir.IntType(1), 1)
        for (buffer, _), first, second in zip(hoisted.checks, *ends, strict=True):
            length = self.buffers[buffer].length
            # the way to the last index must not wrap around: then it is in bounds only if all between are
            way = b.smul_with_overflow(b.sub(second, first), last)
            is_exact = b.not_(b.extract_value(way, 1))
            for index in (first, b.add(first, b.extract_value(way, 0))):
                result = b.and_(result, b.icmp_unsigned("<", index, length))
            result = b.and_(result, is_exact)
        return result

    def _return(self, value: ast.expr | None) -> None:
        result = self.exprs.literal(0) if value is None else self.exprs.value(value)
        self.builder.ret(self.exprs.converted(result, self.result))

    # indices and calls

    def _check_index(self, buffer: BufferValue, index: ir.Value, source: ast.expr) -> None:
        """Leaves the function where an index is out of bounds."""
        if id(source) in self.unchecked:
            return
        (right,) = self._blocks("right")
        self._leave_unless(self.builder.icmp_unsigned("<", index, buffer.length), right)

    def _leave_unless(self, test: ir.Value, right: ir.Block) -> None:
        """Goes on in a block where a test holds, and leaves the function where an index is wrong."""
        (wrong,) = self._blocks("wrong")
        self.builder.cbranch(test, right, wrong)
        self.builder.position_at_end(wrong)
        self._leave()
        self.builder.position_at_end(right)

    def _leave(self) -> None:
        if self.flag is None:
            self.builder.ret(I64(OUT_OF_BOUNDS))
            return
        self.builder.store(I64(1), self.flag)
        self.builder.ret(ir.Constant(register_type(self.result), 0))

    def _call(self, name: str, arguments: Sequence[Argument]) -> Typed | None:
        """The value of a call of a function of the module; None where there is no such function."""
        callee = module_names(self.source).get(name)
        if not isinstance(callee, FunctionType) or callee.__module__ == intrinsics.__name__:
            return None
        if self._slot is None:
            self._slot = as_opaque_pointer(self._alloca(I64))
        function, result = _helper(self.function.module, callee, arguments, self.target, self.may_alias)
        operands = [x for a in arguments for x in ((a.pointer, a.length) if isinstance(a, BufferValue) else (a.value,))]
        value = self.builder.call(function, [*operands, self._slot])
        (right,) = self._blocks("right")
        flag = self.builder.load(self._slot, typ=I64)
        self._leave_unless(self.builder.icmp_unsigned("==", flag, I64(0)), right)
        return Typed(result, value)


def _helper(
    module: ir.Module, callee: FunctionType, arguments: Sequence[Argument], target: Target, may_alias: bool
) -> tuple[ir.Function, DType]:
    """The function of a callee for the types of its arguments, and the type of its result.

    Args:
        module: gets the function.
        callee: the Python function.
        arguments: of the call.
        target: what the code runs on.
        may_alias: whether buffers of the caller with different pointers may be the same one.
    """
    names = list(parse_function(callee).args.args)
    if len(names) != len(arguments):
        what = f"expected {len(names)} arguments, got {len(arguments)}"
        raise InternalError(what, where=f"routine {callee.__name__}")
    kinds = [k for a in arguments for k in ((PTR, I64) if isinstance(a, BufferValue) else (register_type(a.dtype),))]
    types = ".".join(f"{'p' if isinstance(a, BufferValue) else ''}{a.dtype}" for a in arguments)
    buffers = [a.pointer for a in arguments if isinstance(a, BufferValue)]
    is_distinct = len(buffers) < 2 or (not may_alias and len(set(buffers)) == len(buffers))
    suffix = "" if is_distinct else ".aliased"
    name = f"{ROUTINE_PREFIX}{callee.__module__.rsplit('.', 1)[-1]}.{callee.__name__}.{types}{suffix}"
    existing = module.globals.get(name)
    result = _result_type(callee, arguments)
    if isinstance(existing, ir.Function):
        return existing, result
    function = ir.Function(module, ir.FunctionType(register_type(result), [*kinds, PTR]), name)
    function.linkage = "internal"
    function.attributes.add("nounwind")
    if not _has_nested_loops(callee):
        function.attributes.add("alwaysinline")
    values: dict[str, Argument] = {}
    position = 0
    for parameter, a in zip(names, arguments, strict=True):
        if isinstance(a, BufferValue):
            values[parameter.arg] = BufferValue(a.dtype, function.args[position], function.args[position + 1])
            if is_distinct:
                function.args[position].add_attribute("noalias")
            position += 2
        else:
            values[parameter.arg] = Typed(a.dtype, function.args[position])
            position += 1
    flag = function.args[position]
    _FunctionBody(callee, function, values, result, target, flag, may_alias=not is_distinct).emit()
    return function, result


def _has_nested_loops(callee: FunctionType) -> bool:
    """Whether a function has loops in loops, which take longer than its call."""
    loops = [n for n in ast.walk(parse_function(callee)) if isinstance(n, ast.For | ast.While)]
    return any(isinstance(n, ast.For | ast.While) for loop in loops for s in loop.body for n in ast.walk(s))


def _result_type(callee: FunctionType, arguments: Sequence[Argument]) -> DType:
    """The type of a callee's result by its annotation; `Any` stands for the type of its first argument's numbers."""
    annotation = callee.__annotations__.get("return")
    types: dict[object, DType] = {int: int64, bool: boolean, float: float64}
    if annotation in types:
        return types[annotation]
    first = arguments[0]
    return loaded_type(first.dtype) if isinstance(first, BufferValue) else first.dtype
