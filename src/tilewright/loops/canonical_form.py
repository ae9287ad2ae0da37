"""Canonical form of functions: equal kernels have equal text, whatever their names and the order of their parameters.

Names follow from positions: inputs are `a0`, `a1`, ... in the order of their first use, outputs `out`, internal buffers
`t0`, ..., symbols `n0`, ... in the order of first use in shapes, loops `i0`, ... and `r0`, ... (those of reductions),
as in kernels that `graph.coalesce_axes.make_kernel` makes. The operands of `+` and `*` are ordered, which changes no
result: both commute exactly, in floating point too. Operands that differ in nothing but the inputs that they read are
in the order of these inputs, so that one sum is written alike wherever it occurs. `min`, `max` and the order of a sum's
terms stay as they are, since zeros of either sign and roundings would differ.

Equal text is sufficient for equal kernels, not necessary: symbols that only occur together in one size keep the order
in which the function lists them, and operands that only their inputs' other uses tell apart keep that of the source:
`max(x + y, y)` and `max(y + x, y)` are two forms.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.dtype import int64
from tilewright.expr.nodes import Binary, Buffer, Cast, Const, Expr, Load, Unary, Var
from tilewright.expr.printer import show_const
from tilewright.expr.traversal import free_vars, loads, replace_loads
from tilewright.loops.ir import Block, BlockIter, For, Func, If, IterKind, Seq, Stmt, Store, blocks, map_children, walk
from tilewright.loops.printer import show
from tilewright.names import UniqueNames

NAME = "kernel"
"""Name of canonical functions."""

_COMMUTATIVE = ("add", "mul")

_FLOAT = r"(?:\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+)"
_FLOAT_LITERAL = re.compile(rf"\(-{_FLOAT}\)|(?<![\w.])-?{_FLOAT}")
"""A literal as `expr.printer` shows it: a negative one may be in parentheses."""


@dataclass(frozen=True, slots=True, eq=False)
class CanonicalForm:
    """A function with canonical names and order.

    Attributes:
        func: the function.
        text: its text; equal for equal kernels.
        params: names of the original's parameters, in the order of this function's.
        symbols: the original's symbols, in the order of this function's.
    """

    func: Func
    text: str
    params: tuple[str, ...]
    symbols: tuple[Var, ...]


def canonical_form(func: Func) -> CanonicalForm:
    """The canonical form of a function; that of a canonical function is itself.

    Index expressions order their terms by text, so new names may give another order, in which other names are first:
    renaming is repeated until a form comes again, which nearly always is the first one.
    """
    named = replace(func, name=NAME)
    form = CanonicalForm(named, show(named), tuple(p.name for p in func.params), func.symbols)
    # the names that a function came with decide nothing
    form = _rename_by_position(form, has_ordered_buffers=False)
    seen: dict[str, CanonicalForm] = {}
    while form.text not in seen:
        seen[form.text] = form
        form = _rename_by_position(form, has_ordered_buffers=True)
    texts = list(seen)
    return seen[min(texts[texts.index(form.text) :])]


def text_without_literals(text: str) -> str:
    """A function's text with one mark for every floating-point literal."""
    return _FLOAT_LITERAL.sub("?", text)


def _rename_by_position(form: CanonicalForm, has_ordered_buffers: bool) -> CanonicalForm:
    """The form after one renaming; the same object where nothing changes.

    Args:
        form: the form.
        has_ordered_buffers: whether its buffers are in the order of their first use, which then orders operands.
    """
    ordered = [b.name for b in (*form.func.params, *form.func.allocs)] if has_ordered_buffers else []
    func = _order_operands(form.func, {name: k for k, name in enumerate(ordered)})
    buffers = _buffer_names(func)
    symbols = _symbol_order(func, [buffers[b].old for b in _canonical_order(func, buffers)])
    names = UniqueNames.of([b.name for b in buffers.values()])
    variables: dict[Var, Var] = {v: v.renamed(names.fresh(f"n{k}")) for k, v in enumerate(symbols)}
    variables |= _loop_names(func, names)
    renamed = _Renaming(buffers, variables).func(func, _canonical_order(func, buffers), symbols)
    if renamed == form.func:
        return form
    positions = {p.name: k for k, p in enumerate(form.func.params)}
    params = tuple(form.params[positions[name]] for name in _canonical_order(func, buffers) if name in positions)
    originals = dict(zip(form.func.symbols, form.symbols, strict=True))
    return CanonicalForm(renamed, show(renamed), params, tuple(originals[v] for v in symbols))


@dataclass(frozen=True, slots=True)
class _NamedBuffer:
    """A buffer of the function and its new name."""

    old: Buffer
    name: str


def _buffer_names(func: Func) -> dict[str, _NamedBuffer]:
    """New names of buffers by their old ones: inputs in the order of first use, then what is written, in that order."""
    stores = [s for block in blocks(func.body) for s in (block.init, block.body) if s is not None]
    written = dict.fromkeys(s.buffer.name for s in stores)
    used = [x.buffer.name for e in _expressions(func) for x in loads(e)]
    declared = {b.name: b for b in (*func.params, *func.allocs)}
    inputs = [n for n in dict.fromkeys((*used, *declared)) if n not in written]
    outputs = [p.name for p in func.params if p.name in written]
    named = {n: _NamedBuffer(declared[n], f"a{k}") for k, n in enumerate(inputs)}
    for k, n in enumerate(written):
        name = f"t{k}" if n not in outputs else "out" if len(outputs) == 1 else f"out{k}"
        named[n] = _NamedBuffer(declared[n], name)
    return named


def _canonical_order(func: Func, buffers: Mapping[str, _NamedBuffer]) -> list[str]:
    """Old names of the buffers in canonical order, the parameters before the internal ones."""
    params = {p.name for p in func.params}
    return [n for n in buffers if n in params] + [n for n in buffers if n not in params]


def _symbol_order(func: Func, ordered_buffers: list[Buffer]) -> list[Var]:
    """The symbols by first use: in shapes, then anywhere; several of one expression in the function's order."""
    position = {v: k for k, v in enumerate(func.symbols)}
    order: dict[Var, None] = {}
    for e in (*(n for b in ordered_buffers for n in b.shape), *_expressions(func)):
        order |= dict.fromkeys(sorted((v for v in free_vars(e) if v in position), key=lambda v: position[v]))
    return list(order | dict.fromkeys(func.symbols))


def _loop_names(func: Func, names: UniqueNames) -> dict[Var, Var]:
    """New loop and iteration variables, named by kind and depth."""
    reduced = {i.binding for b in blocks(func.body) for i in b.iters if i.kind is IterKind.REDUCE}
    variables: dict[Var, Var] = {}
    for s, enclosing in walk(func.body):
        if isinstance(s, For):
            depth = sum((x.var in reduced) == (s.var in reduced) for x in enclosing)
            variables[s.var] = Var(names.fresh(f"{'r' if s.var in reduced else 'i'}{depth}"))
            # the variables of a loop's iterations follow it, as in untransformed programs
            _name_iterations(s.body, s.var, variables, names)
    for i in (i for b in blocks(func.body) for i in b.iters if i.var not in variables):
        variables[i.var] = Var(names.fresh("v"))
    return variables


def _name_iterations(body: Stmt, loop: Var, variables: dict[Var, Var], names: UniqueNames) -> None:
    for i in (i for b in blocks(body) for i in b.iters if i.binding is loop):
        variables[i.var] = Var(names.fresh(f"v_{variables[loop].name}"))


def _expressions(func: Func) -> Iterator[Expr]:
    """All expressions of the body, in the order of execution; loads of what is stored to count as uses."""
    for s, _ in walk(func.body):
        if isinstance(s, For):
            yield s.extent
            yield from s.prefetches
        elif isinstance(s, Block):
            for i in s.iters:
                yield from (i.extent, i.binding)
            yield s.predicate
            for store in (s.init, s.body):
                if store is not None:
                    yield from (*store.indices, store.value)


class _Renaming:
    """Rewrites a function with other buffers' and variables' names."""

    def __init__(self, buffers: Mapping[str, _NamedBuffer], variables: Mapping[Var, Var]) -> None:
        # what keeps its name needs no substitution
        self._substitution: dict[Var, Expr] = {old: new for old, new in variables.items() if old is not new}
        self._all_variables = variables
        self._buffers = {n: self._rename_buffer(b.old, b.name) for n, b in buffers.items()}

    def _rename_buffer(self, b: Buffer, name: str) -> Buffer:
        return replace(b, name=name, shape=tuple(substitute(n, self._substitution) for n in b.shape))

    def func(self, func: Func, order: list[str], symbols: list[Var]) -> Func:
        """The function with buffers (by old name) and symbols in these orders."""
        params = {p.name for p in func.params}
        return Func(
            NAME,
            tuple(self._buffers[n] for n in order if n in params),
            tuple(self._all_variables[v] for v in symbols),
            tuple(self._buffers[n] for n in order if n not in params),
            self._rename_stmt(func.body, UniqueNames()),
        )

    def _rename_stmt(self, s: Stmt, block_names: UniqueNames) -> Stmt:
        match s:
            case For():
                prefetches = tuple(self._rename_load(p) for p in s.prefetches)
                extent = self._rename_expr(s.extent)
                return For(
                    self._all_variables[s.var], extent, s.kind, self._rename_stmt(s.body, block_names), prefetches
                )
            case Seq():
                return map_children(s, lambda x: self._rename_stmt(x, block_names))
            case If(condition, then, otherwise):
                return If(
                    self._rename_expr(condition),
                    self._rename_stmt(then, block_names),
                    self._rename_stmt(otherwise, block_names),
                )
            case Block():
                iters = tuple(
                    BlockIter(
                        self._all_variables[i.var], self._rename_expr(i.extent), i.kind, self._rename_expr(i.binding)
                    )
                    for i in s.iters
                )
                body, init = self._rename_store(s.body), None if s.init is None else self._rename_store(s.init)
                return Block(block_names.fresh(body.buffer.name), iters, body, init, self._rename_expr(s.predicate))

    def _rename_store(self, s: Store) -> Store:
        target, value = Load(s.buffer, s.indices), s.value
        # the accumulator stays the first operand, of integers too
        if isinstance(value, Binary) and value.a is target:
            renamed: Expr = Binary(value.op, self._rename_load(target), self._rename_expr(value.b))
        else:
            renamed = self._rename_expr(value)
        return Store(self._buffers[s.buffer.name], tuple(map(self._rename_expr, s.indices)), renamed)

    def _rename_load(self, x: Load) -> Load:
        return Load(self._buffers[x.buffer.name], tuple(map(self._rename_expr, x.indices)))

    def _rename_expr(self, e: Expr) -> Expr:
        renamed = replace_loads(e, lambda x: Load(self._buffers[x.buffer.name], x.indices))
        return substitute(renamed, self._substitution)


def _order_operands(func: Func, buffers: Mapping[str, int]) -> Func:
    """The function with ordered operands of sums and products in what blocks store; `buffers` are their positions,
    where these are known."""

    def stmt(s: Stmt) -> Stmt:
        match s:
            case For():
                body = stmt(s.body)
                return s if body is s.body else replace(s, body=body)
            case Seq() | If():
                return map_children(s, stmt)
            case Block():
                value = _ordered_value(s, {p.name for p in func.params}, buffers)
                return s if value is s.body.value else replace(s, body=replace(s.body, value=value))

    body = stmt(func.body)
    return func if body is func.body else func.with_body(body)


def _ordered_value(block: Block, params: set[str], buffers: Mapping[str, int]) -> Expr:
    store = block.body
    keys = _StructuralKeys({i.var: f"v{k}" for k, i in enumerate(block.iters)}, params, buffers)
    if isinstance(store.value, Binary) and store.value.a is Load(store.buffer, store.indices):
        rest = keys.ordered(store.value.b)
        return store.value if rest is store.value.b else Binary(store.value.op, store.value.a, rest)
    return keys.ordered(store.value)


_OrderKey = tuple[int, bool, bytes]


class _StructuralKeys:
    """Keys of expressions without names, and operands ordered by them: larger ones and internal buffers first.

    Args:
        positions: what iteration variables are called.
        params: names of the parameters.
        buffers: positions of buffers, where these are known; they order operands of equal keys.
    """

    def __init__(self, positions: Mapping[Var, str], params: set[str], buffers: Mapping[str, int]) -> None:
        self._positions, self._params, self._buffers = positions, params, buffers
        self._keys: dict[Expr, _OrderKey] = {}
        self._memo: dict[Expr, Expr] = {}

    def ordered(self, e: Expr) -> Expr:
        """`e` with ordered operands."""
        if e not in self._memo:
            old = e.children()
            # indices are in the order of the index algebra
            new = old if isinstance(e, Load) else tuple(self.ordered(c) for c in old)
            result = e if all(a is b for a, b in zip(old, new, strict=True)) else e.rebuild(new)
            if isinstance(result, Binary) and result.op in _COMMUTATIVE and result.dtype is not int64:
                a, b = result.a, result.b
                result = Binary(result.op, b, a) if self._is_before(b, a) else result
            self._memo[e] = result
        return self._memo[e]

    def _is_before(self, b: Expr, a: Expr) -> bool:
        """Whether the second operand comes first."""
        own, other = self._key(b), self._key(a)
        if own != other or not self._buffers:
            return own < other
        return self._buffers_of(b) < self._buffers_of(a)

    def _buffers_of(self, e: Expr) -> list[int]:
        return [self._buffers[x.buffer.name] for x in loads(e)]

    def _key(self, e: Expr) -> _OrderKey:
        if e not in self._keys:
            match e:
                case Const():
                    name = f"{e.dtype} {show_const(e)}"
                case Var():
                    name = self._positions.get(e, f"symbol {e.lo} {e.hi}")
                case Load(buffer):
                    name = f"load {buffer.dtype} {buffer.rank} {buffer.name in self._params}"
                case Unary(op) | Binary(op):
                    name = op
                case _:
                    name = f"cast {e.dtype}" if isinstance(e, Cast) else type(e).__name__
            keys = [self._key(c)[2] for c in e.children()]
            if isinstance(e, Binary) and e.dtype is int64:
                keys.sort()  # their order follows from names
            digest = blake2b(name.encode() + b"\0" + b"".join(keys), digest_size=16).digest()
            outside = isinstance(e, Load) and e.buffer.name in self._params
            self._keys[e] = (-e.tree_size, outside, digest)
        return self._keys[e]
