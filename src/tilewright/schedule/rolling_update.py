"""The primitive rolling_update, which fuses a sum into the loop of a reduction that its terms depend on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.nodes import Buffer, Expr, Load, MemoryScope, Var, const
from tilewright.expr.operations import binary
from tilewright.expr.traversal import loads
from tilewright.loops.ir import Block, For, Func, IterKind, Stmt, Store, blocks, seq, walk
from tilewright.schedule.consumer_legality import check_consumer, check_covered_once, check_inputs_complete
from tilewright.schedule.legality import check_accumulated_once, check_no_races
from tilewright.schedule.online_reduction import (
    OnlineReduction,
    check_contiguous_chunks,
    check_online_reductions,
    check_running_extrema,
    check_spans_agree,
    check_sum,
    reduction_vars,
)
from tilewright.schedule.online_rescale import (
    FactoredValue,
    RunningExtremum,
    rescale,
    rescale_rate,
    split_invariant_factors,
)
from tilewright.schedule.reduction import decompose_reduction
from tilewright.schedule.region import Span, check_domain, over_region, region, span_of
from tilewright.schedule.rewrite_tree import (
    bounds_of,
    check_new_names,
    claim_name,
    copy_with_fresh_names,
    exclusive_nest,
    find_block,
    find_loop,
    nest_loops,
    used_names,
    with_stmt_replaced,
)


def rolling_update(func: Func, block: str, loop: str, name: str | None = None) -> Func:
    """Fuses a sum over k into a loop over (chunks of) k of another reduction whose finished result its value uses: the
    sum uses the running result, and its partial sum is rescaled whenever that result changes.

    Equation: with m the maximum of x_k and L the sum of exp(c*(x_k - m)) * f_k, c > 0, each chunk K of the loop does

        m' = max(m, max of x_k for k in K),   L' = L * exp(c*(m - m')) + sum of exp(c*(x_k - m')) * f_k for k in K.

    Factors of the value that use results of the loop but not k (a division by a finished sum) leave the sum: they are
    applied once, after the loop. One call per sum; later calls reuse the block that saves m.

    Where m is infinite the result is that of the unfused program: L stays as it is while m does not change, and
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
    node, enclosing = find_block(func, block)
    target, outer = find_loop(func, loop)
    loops = (*outer, target)
    check_consumer(func, node, target, place)
    nest = exclusive_nest(node, enclosing, "rolling_update")
    check_domain(node, enclosing, place)
    online = _analyse_sum(func, node, loops, place)
    func = _decompose(func, online.reductions, loop)
    func, saved = _save_running_results(func, loop, online.rescaling, name, place)
    # only now, so that the names of the moved nest stay taken
    func = with_stmt_replaced(func, nest, None)
    rescaled: Expr = Load(node.body.buffer, node.body.indices)
    for extremum, rate in zip(online.extrema, online.rates, strict=True):
        rescaled = rescale(rescaled, extremum, rate, Load(saved[extremum.load.buffer], extremum.load.indices))
    result, finish = _insert_online_sum(func, node, loop, online.spans, online.factors, rescaled)
    running = {node.body.buffer, *(r.load.buffer for r in online.reductions)}
    check_inputs_complete(result, block, [x.var.name for x in loops], running, place)
    if finish:
        check_inputs_complete(result, finish, [x.var.name for x in outer], (), place)
    _check_fused(result, node, place)
    return result


@dataclass(frozen=True, slots=True)
class OnlineSum:
    """A sum whose terms depend on running results.

    Attributes:
        reductions: the reductions whose results it reads.
        factors: the summed value, split into core and invariant factors.
        extrema: the running extrema in the core, with the rates at which it is rescaled.
        spans: the part of its domain that one iteration of the loop completes.
    """

    reductions: Sequence[OnlineReduction]
    factors: FactoredValue
    extrema: Sequence[RunningExtremum]
    rates: Sequence[float]
    spans: Mapping[Var, Span]

    @property
    def rescaling(self) -> list[OnlineReduction]:
        """The reductions whose results the core reads."""
        return [r for r in self.reductions if r.load in loads(self.factors.core)]


def _analyse_sum(func: Func, node: Block, loops: Sequence[For], place: str) -> OnlineSum:
    """The sum in terms of the running results of the last of `loops`, if it can be rescaled."""
    value = check_sum(node, place)
    reductions = check_online_reductions(func, node, loops, place)
    factors = split_invariant_factors(value, reduction_vars(node), [r.load.buffer for r in reductions])
    extrema = check_running_extrema(func, factors.core, reductions, loops[-1], place)
    rates = [rescale_rate(factors.core, e, place) for e in extrema]
    return OnlineSum(reductions, factors, extrema, rates, check_spans_agree(reductions, place))


def _decompose(func: Func, reductions: Sequence[OnlineReduction], loop: str) -> Func:
    """The function with the initialisations of the reductions before the loop."""
    for reduction in reductions:
        if reduction.block.init is not None:
            func = decompose_reduction(func, reduction.block.name, loop)
    return func


def _check_fused(func: Func, node: Block, place: str) -> None:
    """The fused sum covers its domain once, adds every point once, and concurrent loops stay independent."""
    check_covered_once(func, node.name, place)
    check_accumulated_once(func, [node], place)
    check_no_races(func, None, place)


def _save_running_results(
    func: Func, loop: str, reductions: Sequence[OnlineReduction], name: str | None, place: str
) -> tuple[Func, Mapping[Buffer, Buffer]]:
    """The function with a block per running result at the start of the loop that saves its old value, and the buffers
    that hold these; existing saves are reused."""
    target, outer = find_loop(func, loop)
    used = used_names(func)
    if name is not None:
        check_new_names((name,), used, place)
    saved: dict[Buffer, Buffer] = {}
    nests: list[Stmt] = []
    for r in reductions:
        buffer, indices = r.load.buffer, r.block.body.indices
        old = _existing_save(func, r, (*outer, target), place)
        if old is None:
            old = replace(buffer, name=claim_name(name or f"{buffer.name}_old", used), scope=MemoryScope.MEMORY)
            copy = Block(f"{r.block.name}_save", r.block.iters, Store(old, indices, Load(buffer, indices)))
            nests.append(_copy_over_spans(copy, r.own_spans, bounds_of((*outer, target)), used))
            func = replace(func, allocs=(*func.allocs, old))
        saved[buffer] = old
    return with_stmt_replaced(func, target, replace(target, body=seq(*nests, target.body))), saved


def _existing_save(func: Func, reduction: OnlineReduction, loops: Sequence[For], place: str) -> Buffer | None:
    """The buffer in which a block of the loop, before the reduction, has saved the old result."""
    buffer = reduction.load.buffer
    for b, enclosing in walk(loops[-1].body, tuple(loops)):
        if isinstance(b, Block) and b.name == reduction.block.name:
            break
        if isinstance(b, Block) and b.body.value is Load(buffer, b.body.indices) and b.body.buffer in func.allocs:
            copy, inner = b.body.buffer, enclosing[len(loops) :]
            own_spans = {i.var: span_of(i.binding, inner, loops, func, place) for i in b.iters}
            check_contiguous_chunks(b, enclosing, len(loops), own_spans, place)
            regions = [region(func, x, loops, place, writes_only=True) for x in (copy, buffer)]
            if regions[0] == regions[1] and [x.name for x in blocks(func.body) if x.body.buffer == copy] == [b.name]:
                return copy
    return None


def _copy_over_spans(node: Block, spans: Mapping[Var, Span], bounds: Bounds, used: set[str]) -> Stmt:
    """A copy of a block over a part of its domain, without the reductions."""
    spatial = tuple(i for i in node.iters if i.kind is IterKind.SPATIAL)
    copy = copy_with_fresh_names(replace(node, iters=spatial), used)
    if not isinstance(copy, Block):
        raise TypeError("a copy of a block is a block")
    part = {new.var: spans[old.var] for new, old in zip(copy.iters, spatial, strict=True) if old.var in spans}
    placed, loops, _ = over_region(copy, part, bounds, used)
    return nest_loops(loops, placed)


def _insert_online_sum(
    func: Func, node: Block, loop: str, spans: Mapping[Var, Span], factors: FactoredValue, rescaled: Expr
) -> tuple[Func, str]:
    """The function with the sum at the end of the loop: rescaled before it, initialised to 0 before the loop,
    multiplied by the invariant factors after the loop. Also the name of the block that multiplies, empty where there is
    none."""
    target, outer = find_loop(func, loop)
    outer_bounds, loop_bounds = bounds_of(outer), bounds_of((*outer, target))
    used = used_names(func) | {node.name, *(i.var.name for i in node.iters)}
    total = Load(node.body.buffer, node.body.indices)

    def stage(suffix: str, value: Expr, bounds: Bounds) -> Stmt:
        copy = replace(node, name=f"{node.name}_{suffix}", body=replace(node.body, value=value), init=None)
        return _copy_over_spans(copy, spans, bounds, used)

    init = stage("init", const(0, total.dtype), outer_bounds)
    rescaling = () if rescaled is total else (stage("rescale", rescaled, loop_bounds),)
    body = replace(node.body, value=binary("add", total, factors.core))
    added, loops, _ = over_region(replace(node, body=body, init=None), spans, loop_bounds, used)
    fused = replace(target, body=seq(target.body, *rescaling, nest_loops(loops, added)))
    finished: Expr = total
    if factors.invariant_factors:
        check_nonempty_reduction(node)
    for op, factor in factors.invariant_factors:
        finished = finished * factor if op == "mul" else finished / factor
    finish = () if finished is total else (stage("finish", finished, outer_bounds),)
    result = with_stmt_replaced(func, target, seq(init, fused, *finish))
    return result, blocks(finish[0])[0].name if finish else ""


def check_nonempty_reduction(node: Block) -> None:
    """A factor that is applied after the sum must not be applied to an empty sum: 0 / 0 is not 0."""
    for i in node.iters:
        if i.kind is IterKind.REDUCE and not can_prove(i.extent >= 1):
            raise ScheduleError(
                f"{i.extent} may be 0, and a factor of the sum would be applied to no terms",
                where=f"rolling_update of {node.name!r}",
                hint="declare the size to be at least 1",
            )
