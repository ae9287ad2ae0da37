"""Normal form of a kernel's computations: no axes of extent 1, adjacent axes merged wherever every access walks them
together.

[N, C, H, W] + relu becomes one long axis; a 1x1 convolution becomes a matrix product. Buffers of the result are the
same memory under merged shapes, so only their pointers are passed. All stages of a kernel are merged alike, and
buffers and axes get canonical names, so that equal kernels of different layers become equal values.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Axis, Computation
from tilewright.expr.nodes import Buffer, Const, Expr, Load, Var, const
from tilewright.expr.traversal import free_vars, loads, post_order, replace_loads

AxisPair = tuple[Axis, Axis]


@dataclass(frozen=True, slots=True)
class Slices:
    """How a group of kernels is cut that run slice by slice (`graph/slice_kernels.py`).

    Attributes:
        group: name of the buffer that its first kernel hands on.
        count: slices, each an equal part of the leading axis of every kernel.
        private: names of the buffers that it hands on, which have room for one slice only.
    """

    group_name: str
    count: int
    intermediates: frozenset[str]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One future kernel.

    Attributes:
        stages: in canonical form; the last one writes `out`.
        params: the kernel's buffers in the order of its parameters, inputs first, the output last.
        arguments: the program's buffers that are passed for them.
        label: the user's nodes that it computes.
        slices: how the group that it belongs to is cut; stages and parameters are those of one slice then. None where
            it runs as a whole.
        cut: names of the parameters of which a slice has a part.
    """

    stages: tuple[Computation, ...]
    params: tuple[Buffer, ...]
    arguments: tuple[Buffer, ...]
    label: str
    slices: Slices | None = None
    sliced_params: frozenset[str] = frozenset()


def make_kernel(stages: Sequence[Computation]) -> Kernel:
    """The canonical kernel of a chain of computations; every stage but the last is read by later ones only."""
    names = _canonical_names(stages)
    merged = _coalesce(_drop_unit_axes(_rename(stages, names)))
    final = {b.name: b for s in merged for b in s.inputs}
    originals = [b for b in names if names[b].name in final and names[b].name[0] == "a"]
    params = tuple(final[names[b].name] for b in originals)
    labels = dict.fromkeys(s.label for s in stages if s.label)
    return Kernel(tuple(merged), (*params, merged[-1].output), (*originals, stages[-1].output), " + ".join(labels))


def _canonical_names(stages: Sequence[Computation]) -> dict[Buffer, Buffer]:
    """Buffers become a0, a1, ... (inputs), t0, ... (between stages) and out."""
    names: dict[Buffer, Buffer] = {}
    outputs = [s.output for s in stages]
    for s in stages:
        for b in s.inputs:
            if b not in names and b not in outputs:
                names[b] = b.renamed(f"a{len(names)}")
    for k, b in enumerate(outputs):
        names[b] = b.renamed("out" if k == len(outputs) - 1 else f"t{k}")
    return names


def _rename(stages: Sequence[Computation], names: dict[Buffer, Buffer]) -> list[Computation]:
    """The stages over renamed buffers; axes become i0, ... and r0, ..."""
    result: list[Computation] = []
    for s in stages:
        axes = tuple(Axis(Var(f"i{k}"), a.extent) for k, a in enumerate(s.axes))
        inner = tuple(Axis(Var(f"r{k}"), a.extent) for k, a in enumerate(s.reduce_axes))
        mapping: dict[Var, Expr] = {
            old.var: new.var for old, new in zip((*s.axes, *s.reduce_axes), (*axes, *inner), strict=True)
        }
        body = replace_loads(substitute(s.body, mapping), lambda x: Load(names[x.buffer], x.indices))
        result.append(Computation(names[s.output], axes, inner, body, s.reducer, s.label))
    return result


def _is_one(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 1


def _drop_unit_axes(stages: Sequence[Computation]) -> list[Computation]:
    """Axes and dimensions of extent 1 dropped; reductions keep one axis."""

    def squeeze(b: Buffer) -> Buffer:
        return replace(b, shape=tuple(n for n in b.shape if not _is_one(n)))

    def load(x: Load) -> Expr:
        kept = tuple(i for i, n in zip(x.indices, x.buffer.shape, strict=True) if not _is_one(n))
        return Load(squeeze(x.buffer), kept)

    result: list[Computation] = []
    for s in stages:
        inner = [a for a in s.reduce_axes if not _is_one(a.extent)] or list(s.reduce_axes[:1])
        gone: dict[Var, Expr] = {a.var: const(0) for a in s.axes if _is_one(a.extent)}
        gone |= {a.var: const(0) for a in s.reduce_axes if a not in inner}
        body = replace_loads(substitute(s.body, gone), load)
        axes = tuple(a for a in s.axes if not _is_one(a.extent))
        result.append(Computation(squeeze(s.output), axes, tuple(inner), body, s.reducer, s.label))
    return result


def _coalesce(stages: list[Computation]) -> list[Computation]:
    """Pairs of adjacent axes merged until no pair can be."""
    while True:
        done = next(
            (m for k, pair in _adjacent_pairs(stages) if (m := _coalesce_pair(stages, k, pair)) is not None), None
        )
        if done is None:
            return stages
        stages = done


def _adjacent_pairs(stages: Sequence[Computation]) -> Iterator[tuple[int, AxisPair]]:
    """All pairs of neighbouring axes of one kind, with their stage; those of results first."""
    for k, s in enumerate(stages):
        yield from ((k, pair) for pair in pairwise(s.axes))
    for k, s in enumerate(stages):
        yield from ((k, pair) for pair in pairwise(s.reduce_axes))


def _coalesce_pair(stages: Sequence[Computation], seed: int, pair: AxisPair) -> list[Computation] | None:
    """The stages with a pair merged, and with it the pairs of other stages that walk the same dimensions of a buffer;
    None where an access does not walk its pair together."""
    pairs: dict[int, AxisPair] = {seed: pair}
    places: dict[str, int] = {}
    open_ones = [seed]
    while open_ones:
        k = open_ones.pop()
        found = _paired_dims(stages[k], pairs[k])
        if found is None or any(places.setdefault(name, d) != d for name, d in found.items()):
            return None
        for j, s in enumerate(stages):
            if j not in pairs and (walked := _matching_pair(s, places)) is not None:
                pairs[j] = walked
                open_ones.append(j)
    return _coalesce_stages(stages, [pairs.get(k) for k in range(len(stages))], places)


def _paired_dims(s: Computation, pair: AxisPair) -> dict[str, int] | None:
    """The first of the two dimensions that a pair walks, of every buffer; None where a buffer is walked otherwise."""
    found: dict[str, int] = {}
    if not _has_plain_indices_only(s.body, pair):
        return None
    if pair[0] in s.axes:
        found[s.output.name] = s.axes.index(pair[0])
    for x in loads(s.body):
        place = _paired_dim(x, pair)
        if place is not None and found.setdefault(x.buffer.name, place) != place:
            return None
    return None if -1 in found.values() else found


def _matching_pair(s: Computation, paired_dims: Mapping[str, int]) -> AxisPair | None:
    """The pair of a stage that walks the dimensions to be merged, as its first access tells."""
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
    """Every stage with its pair merged; None where a stage walks one of the buffers without a pair, or otherwise."""
    for s, pair in zip(stages, pairs, strict=True):
        found = {} if pair is None else _paired_dims(s, pair)
        touched = {b.name for b in (*s.inputs, s.output)}
        if found is None or any(found.get(n) != paired_dims.get(n) for n in touched):
            return None
        # a pair in some loads of a buffer and not in others can't be told apart from its name
        if pair is not None and any(_paired_dim(x, pair) != paired_dims.get(x.buffer.name) for x in loads(s.body)):
            return None

    def shrink(b: Buffer) -> Buffer:
        k = paired_dims.get(b.name)
        return b if k is None else replace(b, shape=(*b.shape[:k], b.shape[k] * b.shape[k + 1], *b.shape[k + 2 :]))

    result: list[Computation] = []
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
        result.append(Computation(shrink(s.output), axes(s.axes), axes(s.reduce_axes), body, s.reducer, s.label))
    return result


def _has_plain_indices_only(body: Expr, pair: AxisPair) -> bool:
    """Whether the pair's variables occur as plain indices of loads only (a condition on them forbids merging)."""
    variables = {pair[0].var, pair[1].var}
    plain = {id(i) for x in loads(body) for i in x.indices}
    for e in post_order(body):
        if isinstance(e, Load):
            continue
        if any(c in variables for c in e.children() if isinstance(c, Var)):
            return False
    return (body not in variables and bool(plain)) or not (free_vars(body) & variables)


def _paired_dim(x: Load, pair: AxisPair) -> int | None:
    """The dimension at which a load walks the pair; None when it uses neither, -1 when it uses them otherwise."""
    a, b = pair
    used = [k for k, i in enumerate(x.indices) if free_vars(i) & {a.var, b.var}]
    if not used:
        return None
    k = used[0]
    together = len(used) == 2 and used[1] == k + 1 and x.indices[k] is a.var and x.indices[k + 1] is b.var
    return k if together and x.buffer.shape[k + 1] is b.extent else -1
