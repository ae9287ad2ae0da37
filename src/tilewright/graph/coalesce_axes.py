"""Canonical form of a kernel: unit axes dropped, adjacent axes coalesced where every access walks them together.

[N, C, H, W] + relu becomes one long axis; a 1x1 convolution becomes a matrix product. Buffers of the result are the
same memory under coalesced shapes, so only their pointers are passed. All stages of a kernel are coalesced in the same
way, and buffers and axes get canonical names, so that equal kernels of different layers become equal values.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Axis, Computation
from tilewright.expr.nodes import Buffer, Expr, Load, Var, const
from tilewright.expr.traversal import free_vars, is_one, loads, post_order, replace_loads
from tilewright.graph.fusion import fusion_of
from tilewright.graph.kernel import Kernel

AxisPair = tuple[Axis, Axis]


def make_kernel(stages: Sequence[Computation], outputs: Collection[Buffer] = ()) -> Kernel:
    """The canonical kernel of a group of computations.

    Args:
        stages: in order of execution.
        outputs: the results that others read; by default that of the last stage. All others are intermediates.
    """
    return _make_kernel(tuple(stages), frozenset(outputs))


# partitions of alternatives of a program have most kernels in common
@lru_cache(maxsize=1024)
def _make_kernel(stages: tuple[Computation, ...], outputs: frozenset[Buffer]) -> Kernel:
    results = [s.output for s in stages if s.output in outputs] or [stages[-1].output]
    names = _canonical_names(stages, results)
    coalesced = _coalesce(_drop_unit_axes(_rename(stages, names)))
    inputs = {b.name: b for s in coalesced for b in s.inputs}
    originals = [b for b in names if names[b].name in inputs and names[b].name[0] == "a"]
    params = tuple(inputs[names[b].name] for b in originals)
    labels = dict.fromkeys(s.label for s in stages if s.label)
    result_params = [new.output for s, new in zip(stages, coalesced, strict=True) if s.output in results]
    fusion = fusion_of(coalesced, {b.name for b in result_params})
    return Kernel(tuple(coalesced), (*params, *result_params), (*originals, *results), fusion, " + ".join(labels))


def _canonical_names(stages: Sequence[Computation], results: Sequence[Buffer]) -> dict[Buffer, Buffer]:
    """Canonical buffers: a0, a1, ... for inputs, t0, t1, ... for intermediates, and out, or out0, out1, ... where there
    are several outputs."""
    names: dict[Buffer, Buffer] = {}
    written = [s.output for s in stages]
    for s in stages:
        for b in s.inputs:
            if b not in names and b not in written:
                names[b] = b.renamed(f"a{len(names)}")
    for k, b in enumerate(written):
        number = results.index(b) if len(results) > 1 and b in results else ""
        names[b] = b.renamed(f"out{number}" if b in results else f"t{k}")
    return names


def _rename(stages: Sequence[Computation], names: dict[Buffer, Buffer]) -> list[Computation]:
    """The stages over renamed buffers; axes become i0, i1, ..., reduction axes r0, r1, ..."""
    result: list[Computation] = []
    for s in stages:
        axes = tuple(Axis(Var(f"i{k}"), a.extent) for k, a in enumerate(s.axes))
        reduce_axes = tuple(Axis(Var(f"r{k}"), a.extent) for k, a in enumerate(s.reduce_axes))
        mapping: dict[Var, Expr] = {
            old.var: new.var for old, new in zip((*s.axes, *s.reduce_axes), (*axes, *reduce_axes), strict=True)
        }
        body = replace_loads(substitute(s.body, mapping), lambda x: Load(names[x.buffer], x.indices))
        result.append(Computation(names[s.output], axes, reduce_axes, body, s.reducer, s.label))
    return result


def _drop_unit_axes(stages: Sequence[Computation]) -> list[Computation]:
    """The stages without axes and dimensions of extent 1; reductions keep one axis."""

    def squeeze(b: Buffer) -> Buffer:
        return replace(b, shape=tuple(n for n in b.shape if not is_one(n)))

    def load(x: Load) -> Expr:
        indices = tuple(i for i, n in zip(x.indices, x.buffer.shape, strict=True) if not is_one(n))
        return Load(squeeze(x.buffer), indices)

    result: list[Computation] = []
    for s in stages:
        reduce_axes = [a for a in s.reduce_axes if not is_one(a.extent)] or list(s.reduce_axes[:1])
        dropped: dict[Var, Expr] = {a.var: const(0) for a in s.axes if is_one(a.extent)}
        dropped |= {a.var: const(0) for a in s.reduce_axes if a not in reduce_axes}
        body = replace_loads(substitute(s.body, dropped), load)
        axes = tuple(a for a in s.axes if not is_one(a.extent))
        result.append(Computation(squeeze(s.output), axes, tuple(reduce_axes), body, s.reducer, s.label))
    return result


def _coalesce(stages: list[Computation]) -> list[Computation]:
    """The stages after coalescing pairs of adjacent axes until no pair is left."""
    while True:
        coalesced = next(
            (m for k, pair in _adjacent_pairs(stages) if (m := _coalesce_pair(stages, k, pair)) is not None), None
        )
        if coalesced is None:
            return stages
        stages = coalesced


def _adjacent_pairs(stages: Sequence[Computation]) -> Iterator[tuple[int, AxisPair]]:
    """All pairs of adjacent axes of one kind, with the position of their stage; pairs of spatial axes first."""
    for k, s in enumerate(stages):
        yield from ((k, pair) for pair in pairwise(s.axes))
    for k, s in enumerate(stages):
        yield from ((k, pair) for pair in pairwise(s.reduce_axes))


def _coalesce_pair(stages: Sequence[Computation], seed: int, pair: AxisPair) -> list[Computation] | None:
    """The stages with a pair of axes coalesced, and with it the pairs of other stages that walk the same dimensions of
    a buffer; None where some access does not walk its pair together."""
    pairs: dict[int, AxisPair] = {seed: pair}
    paired_dims: dict[str, int] = {}
    worklist = [seed]
    while worklist:
        k = worklist.pop()
        dims = _paired_dims(stages[k], pairs[k])
        if dims is None or any(paired_dims.setdefault(name, d) != d for name, d in dims.items()):
            return None
        for j, s in enumerate(stages):
            if j not in pairs and (matching := _matching_pair(s, paired_dims)) is not None:
                pairs[j] = matching
                worklist.append(j)
    return _coalesce_stages(stages, [pairs.get(k) for k in range(len(stages))], paired_dims)


def _paired_dims(s: Computation, pair: AxisPair) -> dict[str, int] | None:
    """For every buffer, the first of the two dimensions that a pair of axes walks; None where an access does not walk
    the pair as two adjacent dimensions."""
    dims: dict[str, int] = {}
    if not _has_plain_indices_only(s.body, pair):
        return None
    if pair[0] in s.axes:
        dims[s.output.name] = s.axes.index(pair[0])
    for x in loads(s.body):
        dim = _paired_dim(x, pair)
        if dim is not None and dims.setdefault(x.buffer.name, dim) != dim:
            return None
    return None if -1 in dims.values() else dims


def _matching_pair(s: Computation, paired_dims: Mapping[str, int]) -> AxisPair | None:
    """The pair of a stage that walks the dimensions to be coalesced, read off its first access to them."""
    kinds = [list(pairwise(s.axes)), list(pairwise(s.reduce_axes))]
    if s.output.name in paired_dims:
        return kinds[0][paired_dims[s.output.name]]
    for x in loads(s.body):
        k = paired_dims.get(x.buffer.name)
        if k is not None:
            first, second = x.indices[k], x.indices[k + 1]
            return next((p for p in (*kinds[0], *kinds[1]) if p[0].var is first and p[1].var is second), None)
    return None


def _coalesce_stages(
    stages: Sequence[Computation], pairs: Sequence[AxisPair | None], paired_dims: Mapping[str, int]
) -> list[Computation] | None:
    """Every stage with its pair coalesced; None where a stage accesses the buffers without a pair, or at other
    dimensions."""
    for s, pair in zip(stages, pairs, strict=True):
        dims = {} if pair is None else _paired_dims(s, pair)
        accessed = {b.name for b in (*s.inputs, s.output)}
        if dims is None or any(dims.get(n) != paired_dims.get(n) for n in accessed):
            return None
        # Dimensions are recorded per buffer name, so all loads of a buffer must agree.
        if pair is not None and any(_paired_dim(x, pair) != paired_dims.get(x.buffer.name) for x in loads(s.body)):
            return None

    def shrink(b: Buffer) -> Buffer:
        k = paired_dims.get(b.name)
        return b if k is None else replace(b, shape=(*b.shape[:k], b.shape[k] * b.shape[k + 1], *b.shape[k + 2 :]))

    coalesced: list[Computation] = []
    for s, pair in zip(stages, pairs, strict=True):
        merged = None if pair is None else Axis(Var(pair[0].var.name), pair[0].extent * pair[1].extent)

        def load(x: Load, merged: Axis | None = merged) -> Expr:
            k = paired_dims.get(x.buffer.name)
            if k is None or merged is None:
                return Load(shrink(x.buffer), x.indices)
            return Load(shrink(x.buffer), (*x.indices[:k], merged.var, *x.indices[k + 2 :]))

        def axes(old: tuple[Axis, ...], pair: AxisPair | None = pair, merged: Axis | None = merged) -> tuple[Axis, ...]:
            if pair is None or merged is None:
                return old
            return tuple(merged if a is pair[0] else a for a in old if a is not pair[1])

        body = replace_loads(s.body, load)
        coalesced.append(Computation(shrink(s.output), axes(s.axes), axes(s.reduce_axes), body, s.reducer, s.label))
    return coalesced


def _has_plain_indices_only(body: Expr, pair: AxisPair) -> bool:
    """Whether the pair's variables occur as whole indices of loads only; a condition on them forbids coalescing."""
    variables = {pair[0].var, pair[1].var}
    plain = {id(i) for x in loads(body) for i in x.indices}
    for e in post_order(body):
        if isinstance(e, Load):
            continue
        if any(c in variables for c in e.children() if isinstance(c, Var)):
            return False
    return (body not in variables and bool(plain)) or not (free_vars(body) & variables)


def _paired_dim(x: Load, pair: AxisPair) -> int | None:
    """The dimension at which a load walks the pair; None without the pair's variables, -1 where it uses them
    otherwise."""
    a, b = pair
    used = [k for k, i in enumerate(x.indices) if free_vars(i) & {a.var, b.var}]
    if not used:
        return None
    k = used[0]
    is_adjacent = len(used) == 2 and used[1] == k + 1 and x.indices[k] is a.var and x.indices[k + 1] is b.var
    return k if is_adjacent and x.buffer.shape[k + 1] is b.extent else -1
