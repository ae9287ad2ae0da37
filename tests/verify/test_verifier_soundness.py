"""Soundness of the verifier: accepted random programs are right, checked by enumerating all iterations."""

from itertools import product

from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.expr.strategies import value

from tilewright.errors import VerifyError
from tilewright.expr.dtype import float32
from tilewright.expr.nodes import TRUE, Binary, Buffer, Expr, Load, Var, const
from tilewright.expr.operations import conjunction, minimum
from tilewright.loops.ir import Block, BlockIter, For, Func, IterKind, LoopKind, Stmt, Store, seq
from tilewright.schedule.rewrite_tree import copy_with_fresh_names, substitute_vars
from tilewright.verify.verifier import verify

LOOPS = (Var("a"), Var("b"), Var("c"))
KINDS = (LoopKind.SERIAL, LoopKind.SERIAL, LoopKind.PARALLEL, LoopKind.VECTORIZED)


def _binding(draw: st.DrawFn, variables: list[Var], extents: dict[Var, int]) -> Expr:
    """Mostly what schedules make (loops in mixed radix, digits of one loop), sometimes anything."""
    kind = draw(st.integers(0, 6))
    v, w = draw(st.sampled_from(variables)), draw(st.sampled_from(variables))
    if kind == 0:
        return v
    if kind == 1:
        return v * draw(st.sampled_from((extents[w], draw(st.integers(1, 4))))) + w
    if kind == 2:
        return v // draw(st.integers(1, 4))
    if kind == 3:
        return v % draw(st.integers(1, 4))
    if kind == 4:
        split = v * extents[w] + w
        d = draw(st.integers(1, 4))
        return split // d if draw(st.booleans()) else split % d
    if kind == 5:
        step, limit = draw(st.sampled_from((extents[w], draw(st.integers(1, 4))))), draw(st.integers(0, 8))
        return minimum(v * step, const(limit)) * draw(st.sampled_from((1, 1, 2))) + w
    return v + draw(st.integers(0, 1))


@st.composite
def programs(draw: st.DrawFn, reducing: bool) -> Func:
    """One block in up to three loops that writes a parameter at its spatial variables."""
    variables = list(LOOPS[: draw(st.integers(1, 3))])
    extents = {v: draw(st.integers(1, 4)) for v in variables}
    if len(variables) == 1 and draw(st.booleans()):
        extents[variables[0]] = draw(st.sampled_from((4, 6, 8)))
    kinds = (IterKind.SPATIAL, draw(st.sampled_from(IterKind))) if not reducing else (IterKind.SPATIAL, IterKind.REDUCE)
    bindings = [_binding(draw, variables, extents) for _ in kinds[: draw(st.integers(1 + reducing, 2))]]
    points = [dict(zip(variables, p, strict=True)) for p in product(*(range(extents[v]) for v in variables))]
    largest = [max(int(value(e, p)) for p in points) for e in bindings]
    where: Expr = TRUE
    if draw(st.integers(0, 3)) == 0:
        k = draw(st.integers(0, len(bindings) - 1))
        cut = draw(st.integers(1, largest[k] + 1))
        where, largest[k] = conjunction(Binary("lt", bindings[k], const(cut))), min(largest[k], cut - 1)
    sizes = [n + 1 + (draw(st.integers(0, 9)) == 0) for n in largest]
    described = enumerate(zip(sizes, kinds, bindings, strict=False))
    iters = tuple(BlockIter(Var(f"v{k}"), const(n), kind, e) for k, (n, kind, e) in described)
    spatial = tuple(i.var for i in iters if i.kind is IterKind.SPATIAL)
    out = Buffer("OUT", tuple(i.extent for i in iters if i.kind is IterKind.SPATIAL), float32)
    one = const(1.0, float32)
    if len(spatial) < len(iters):
        update = Binary("add", Load(out, spatial), one)
        block = Block("OUT", iters, Store(out, spatial, update), Store(out, spatial, const(0.0, float32)), where)
    else:
        block = Block("OUT", iters, Store(out, spatial, one), None, where)
    body: Stmt = block
    for v in reversed(variables):
        body = For(v, const(extents[v]), draw(st.sampled_from(KINDS)), body)
    return Func("f", (out,), (), (), body)


def _check(func: Func) -> None:
    """By brute force: every point reached, reductions once, concurrent iterations apart."""
    loops: list[For] = []
    s: Stmt = func.body
    while isinstance(s, For):
        loops.append(s)
        s = s.body
    assert isinstance(s, Block)
    iterations_by_point: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for p in product(*(range(int(str(loop.extent))) for loop in loops)):
        env = {loop.var: x for loop, x in zip(loops, p, strict=True)}
        if value(s.predicate, env):
            iterations_by_point.setdefault(tuple(int(value(i.binding, env)) for i in s.iters), []).append(p)
    domain = set(product(*(range(int(str(i.extent))) for i in s.iters)))
    assert set(iterations_by_point) == domain, "not every point of the domain, or points outside"
    reduces = [i.kind is IterKind.REDUCE for i in s.iters]
    writers: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for point, iterations in iterations_by_point.items():
        element = tuple(x for x, r in zip(point, reduces, strict=True) if not r)
        writers.setdefault(element, []).extend(iterations)
    for iterations in writers.values():
        for k, loop in enumerate(loops):
            if loop.kind is LoopKind.SERIAL or (loop.kind is LoopKind.VECTORIZED and any(reduces)):
                continue
            # Equal outer loops: do different iterations of this loop meet in the element?
            groups: dict[tuple[int, ...], set[int]] = {}
            for p in iterations:
                groups.setdefault(p[:k], set()).add(p[k])
            assert all(len(g) == 1 for g in groups.values()), f"race in {loop.var}"


def _accepted(func: Func) -> bool:
    try:
        verify(func)
    except VerifyError:
        return False
    return True


@given(programs(reducing=False))
@settings(max_examples=400)
def test_accepted_spatial_programs_are_right(func: Func) -> None:
    if not _accepted(func):
        return
    event("accepted")
    _check(func)


@given(programs(reducing=True))
@settings(max_examples=400)
def test_accepted_reductions_are_right(func: Func) -> None:
    if not _accepted(func):
        return
    event("accepted")
    _check(func)
    counts = _counts(func)
    assert len(set(counts.values())) == 1, "some elements count more points than others"
    (block,) = [s for s in _statements(func.body) if isinstance(s, Block)]
    expected = 1
    for i in block.iters:
        if i.kind is IterKind.REDUCE:
            expected *= int(str(i.extent))
    assert set(counts.values()) == {expected}


def _statements(s: Stmt) -> list[Stmt]:
    return [s, *_statements(s.body)] if isinstance(s, For) else [s]


def _counts(func: Func) -> dict[tuple[int, ...], int]:
    """How many ones every element sums, in loop order with the init of the block."""
    chain = _statements(func.body)
    loops, block = [s for s in chain if isinstance(s, For)], chain[-1]
    assert isinstance(block, Block)
    total: dict[tuple[int, ...], int] = {}
    for p in product(*(range(int(str(loop.extent))) for loop in loops)):
        env = {loop.var: x for loop, x in zip(loops, p, strict=True)}
        if not value(block.predicate, env):
            continue
        point = [(i.kind, int(value(i.binding, env))) for i in block.iters]
        element = tuple(x for kind, x in point if kind is IterKind.SPATIAL)
        if all(x == 0 for kind, x in point if kind is IterKind.REDUCE):
            total[element] = 0
        total[element] = total.get(element, 0) + 1
    return total


@st.composite
def cut_programs(draw: st.DrawFn) -> Func:
    """Nests of which one loop was cut in two, each part perhaps split again; sometimes not quite as it should be."""
    variables = list(LOOPS[: draw(st.integers(1, 3))])
    extents = {v: draw(st.integers(1, 6)) for v in variables}
    place = draw(st.integers(0, len(variables) - 1))
    size: int = 1
    bindings: list[Expr] = []
    if draw(st.booleans()):
        total: Expr = const(0)
        for v in variables:
            total = total * extents[v] + v
            size *= extents[v]
        bindings, sizes = [total], [size]
    else:
        bindings, sizes = list(variables), [extents[v] for v in variables]
    where = bindings[0] < draw(st.integers(1, sizes[0])) if draw(st.integers(0, 2)) == 0 else TRUE
    out = Buffer("OUT", tuple(const(n) for n in sizes), float32)
    iters = tuple(
        BlockIter(Var(f"v{k}"), const(n), IterKind.SPATIAL, e)
        for k, (n, e) in enumerate(zip(sizes, bindings, strict=True))
    )
    body: Stmt = Block("OUT", iters, Store(out, tuple(i.var for i in iters), const(1.0, float32)), None, where)
    used = {"OUT", *(v.name for v in variables), *(i.var.name for i in iters)}
    for k in reversed(range(len(variables))):
        v = variables[k]
        if k == place:
            cut = draw(st.integers(0, extents[v]))
            slip = draw(st.sampled_from((0, 0, 0, 0, -1, 1)))
            rest = substitute_vars(body, {v: v + cut + slip})
            parts = [(cut, body), (extents[v] - cut, rest)]
            body = seq(*(copy_with_fresh_names(_split(draw, v, n, part), used) for n, part in parts))
        else:
            body = For(v, const(extents[v]), LoopKind.SERIAL, body)
    return Func("f", (out,), (), (), body)


def _split(draw: st.DrawFn, v: Var, extent: int, body: Stmt) -> Stmt:
    """The loop over `v`, perhaps in tiles."""
    factor = draw(st.integers(1, 4))
    if draw(st.booleans()) or extent % factor:
        return For(v, const(extent), LoopKind.SERIAL, body)
    o, i = Var("o"), Var("i")
    inner = For(i, const(factor), LoopKind.SERIAL, substitute_vars(body, {v: o * factor + i}))
    return For(o, const(extent // factor), LoopKind.SERIAL, inner)


def _reached(s: Stmt, env: dict[Var, int]) -> set[tuple[int, ...]]:
    match s:
        case For():
            return {p for x in range(int(str(s.extent))) for p in _reached(s.body, {**env, s.var: x})}
        case Block():
            return {tuple(int(value(i.binding, env)) for i in s.iters)} if value(s.predicate, env) else set()
        case _:
            return {p for c in s.stmts for p in _reached(c, env)}


@given(cut_programs())
@settings(max_examples=600)
def test_accepted_peeled_programs_cover_their_domain(func: Func) -> None:
    if not _accepted(func):
        return
    event("accepted")
    assert _reached(func.body, {}) == set(product(*(range(int(str(n))) for n in func.params[0].shape)))
