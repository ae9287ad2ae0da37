"""The primitive that fuses reductions which depend on each other into one loop: rolling_update."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.expr.bounds import Bounds
from tilewright.expr.buffer import Buffer, Scope
from tilewright.expr.nodes import Expr, Load, Var, binary, const, loads
from tilewright.expr.prover import prove
from tilewright.loops.ir import Block, For, Func, IterKind, Stmt, Store, blocks, seq, walk
from tilewright.schedule.correction import Factors, rate, rescaled, separated
from tilewright.schedule.legality import check_counted_once, check_independent
from tilewright.schedule.readiness import check_consumer, check_reached_once, check_ready
from tilewright.schedule.reduction import decompose_reduction
from tilewright.schedule.region import Span, check_domain, nested, over_region, region, span_of
from tilewright.schedule.running import (
    Source,
    check_agreement,
    check_contiguous,
    check_extremes,
    check_sources,
    check_sum,
    reduced_vars,
)
from tilewright.schedule.tree import (
    bounds_of,
    check_new_names,
    claimed,
    find_block,
    find_loop,
    own_nest,
    renamed,
    used_names,
    with_replaced,
)


def rolling_update(func: Func, block: str, loop: str, name: str | None = None) -> Func:
    """Fuses a sum over k into a loop over (chunks of) k of another reduction whose finished result its value uses: the
    sum uses the result so far, and what it has gathered is corrected whenever that result changes.

    Equation: with m the maximum of x_k and L the sum of exp(c*(x_k - m)) * f_k, c > 0, each chunk K of the loop does

        m' = max(m, max of x_k for k in K),   L' = L * exp(c*(m - m')) + sum of exp(c*(x_k - m')) * f_k for k in K.

    Factors of the value that use results of the loop but not k (a division by a finished sum) leave the sum: they are
    applied once, behind the loop. One call per sum; the next ones use the block that saves m again.

    Where m is infinite there is no difference to the unfused program: L stays as it is while m does not change, and
    starts again at 0 when m leaves the infinity that it started from (masked keys first); a row that is masked as a
    whole gives NaN either way. NaN in x or f gives NaN. The order of additions changes, as with `rfactor`, and an
    infinite f_k whose weight vanishes only in a later chunk may give NaN where 0 * inf does not occur unfused.

    Args:
        name: of the buffer that saves m; `<m>_old` without it.

    Legality: the sum's nest holds only that block and comes after that of the loop; it alone writes its buffer, of
    float32 or float64, at spatial variables, and its init is 0; inside the loop one block each reduces over the loop
    to the results that the value uses, at plain iteration variables, over the same reduction axes, contiguous chunks
    in growing order; in the rest of the value, without the factors that leave, such a result is the maximum (minimum)
    of x and occurs only in factors exp(c*(x - m)) (exp(c*(m - x))), so that nothing overflows on the way; the other
    inputs are final where they are used; every element of all these belongs to one iteration of the loops around.

        for i:                                           for i:
            for k: block m: m[i] = max(m[i], x[i, k])        block m_init: m[i] = -inf
        for i:                                               block L_init: L[i] = 0
            for k: block L:                                  for k:
                init L[i] = 0                                    block m_save: m_old[i] = m[i]
                L[i] = L[i] + exp(x[i, k] - m[i])    ->          block m: m[i] = max(m[i], x[i, k])
                                                                 block L_rescale: L[i] = L[i] * exp(m_old[i] - m[i])
                                                                 block L: L[i] = L[i] + exp(x[i, k] - m[i])

    Known as online normalizer calculation (Milakov and Gimelshein, Section 3), the inner loop of FlashAttention (Dao et
    al., Algorithm 1), rolling update in Neptune.
    """
    place = f"rolling_update of {block!r} in loop {loop!r}"
    node, around = find_block(func, block)
    target, outer = find_loop(func, loop)
    check_consumer(func, node, target, place)
    nest = own_nest(node, around, "rolling_update")
    check_domain(node, around, place)
    value = check_sum(node, place)
    sources = check_sources(func, node, (*outer, target), place)
    factors = separated(value, reduced_vars(node), [s.load.buffer for s in sources])
    extremes = check_extremes(func, factors.core, sources, target, place)
    rates = [rate(factors.core, e, place) for e in extremes]
    spans = check_agreement(sources, place)
    for source in sources:
        if source.block.init is not None:
            func = decompose_reduction(func, source.block.name, loop)
    func, old = _with_saved(func, loop, [s for s in sources if s.load in loads(factors.core)], name, place)
    # only now, so that the names of what moves stay taken
    func = with_replaced(func, nest, None)
    own = Load(node.body.buffer, node.body.indices)
    correction: Expr = own
    for extreme, a in zip(extremes, rates, strict=True):
        correction = rescaled(correction, extreme, a, Load(old[extreme.load.buffer], extreme.load.indices))
    result, finish = _with_sum(func, node, loop, spans, factors, correction)
    running = {own.buffer, *(s.load.buffer for s in sources)}
    check_ready(result, block, [x.var.name for x in (*outer, target)], running, place)
    if finish:
        check_ready(result, finish, [x.var.name for x in outer], (), place)
    check_reached_once(result, block, place)
    check_counted_once(result, [node], place)
    check_independent(result, None, place)
    return result


def _with_saved(
    func: Func, loop: str, sources: Sequence[Source], name: str | None, place: str
) -> tuple[Func, Mapping[Buffer, Buffer]]:
    """The function with a block at the start of the loop for each running result, which saves what it was, and the
    buffer it saves it in; a block that does so already is used."""
    target, outer = find_loop(func, loop)
    used = used_names(func)
    if name is not None:
        check_new_names((name,), used, place)
    saved: dict[Buffer, Buffer] = {}
    nests: list[Stmt] = []
    for s in sources:
        buffer, at = s.load.buffer, s.block.body.indices
        known = _saved_already(func, s, (*outer, target), place)
        if known is None:
            known = replace(buffer, name=claimed(name or f"{buffer.name}_old", used), scope=Scope.MEMORY)
            copy = Block(f"{s.block.name}_save", s.block.iters, Store(known, at, Load(buffer, at)))
            nests.append(_over_part(copy, s.own, bounds_of((*outer, target)), used))
            func = replace(func, allocs=(*func.allocs, known))
        saved[buffer] = known
    return with_replaced(func, target, replace(target, body=seq(*nests, target.body))), saved


def _saved_already(func: Func, source: Source, loops: Sequence[For], place: str) -> Buffer | None:
    """The buffer in which a block of the loop, before the reduction, has saved what its result was."""
    buffer = source.load.buffer
    for b, around in walk(loops[-1].body, tuple(loops)):
        if isinstance(b, Block) and b.name == source.block.name:
            break
        if isinstance(b, Block) and b.body.value is Load(buffer, b.body.indices) and b.body.buffer in func.allocs:
            copy, inner = b.body.buffer, around[len(loops) :]
            own = {i.var: span_of(i.binding, inner, loops, func, place) for i in b.iters}
            check_contiguous(b, around, len(loops), own, place)
            boxes = [region(func, x, loops, place, writes_only=True) for x in (copy, buffer)]
            if boxes[0] == boxes[1] and [x.name for x in blocks(func.body) if x.body.buffer == copy] == [b.name]:
                return copy
    return None


def _over_part(node: Block, spans: Mapping[Var, Span], known: Bounds, used: set[str]) -> Stmt:
    """A copy of a block over a part of its domain, without the reductions."""
    spatial = tuple(i for i in node.iters if i.kind is IterKind.SPATIAL)
    copy = renamed(replace(node, iters=spatial), used)
    if not isinstance(copy, Block):
        raise TypeError("a copy of a block is a block")
    part = {new.var: spans[old.var] for new, old in zip(copy.iters, spatial, strict=True) if old.var in spans}
    placed, loops, _ = over_region(copy, part, known, used)
    return nested(loops, placed)


def _with_sum(
    func: Func, node: Block, loop: str, spans: Mapping[Var, Span], factors: Factors, correction: Expr
) -> tuple[Func, str]:
    """The function with the sum at the end of the loop, corrected before, set to 0 before the loop, and multiplied by
    what left it behind the loop; and the name of the block that does the last, empty where there is none."""
    target, outer = find_loop(func, loop)
    around, inside = bounds_of(outer), bounds_of((*outer, target))
    used = used_names(func) | {node.name, *(i.var.name for i in node.iters)}
    own = Load(node.body.buffer, node.body.indices)

    def part(suffix: str, value: Expr, known: Bounds) -> Stmt:
        copy = replace(node, name=f"{node.name}_{suffix}", body=replace(node.body, value=value), init=None)
        return _over_part(copy, spans, known, used)

    before = part("init", const(0, own.dtype), around)
    rescale = () if correction is own else (part("rescale", correction, inside),)
    body = replace(node.body, value=binary("add", own, factors.core))
    added, loops, _ = over_region(replace(node, body=body, init=None), spans, inside, used)
    changed = replace(target, body=seq(target.body, *rescale, nested(loops, added)))
    finished: Expr = own
    if factors.outer:
        check_some_terms(node)
    for op, factor in factors.outer:
        finished = finished * factor if op == "mul" else finished / factor
    after = () if finished is own else (part("finish", finished, around),)
    result = with_replaced(func, target, seq(before, changed, *after))
    return result, blocks(after[0])[0].name if after else ""


def check_some_terms(node: Block) -> None:
    """A factor that is applied behind the sum must not be applied to a sum of nothing: 0 / 0 is no 0."""
    for i in node.iters:
        if i.kind is IterKind.REDUCE and not prove(i.extent >= 1):
            raise ScheduleError(
                f"{i.extent} may be 0, and a factor of the sum would be applied to no terms",
                where=f"rolling_update of {node.name!r}",
                hint="declare the size to be at least 1",
            )
