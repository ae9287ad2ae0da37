"""One form of attention, whatever operators a model spells it with.

    scores[b, h, m, t] = sum(q[b, h, m, k] * key[b, h, k, t] for k)
    masked[b, h, m, t] = scores * scale + mask
    powers[b, h, m, t] = exp(masked - max(masked over t))
    result[b, h, m, d] = sum(powers * v[b, h, t, d] for t) * inverse[b, h, m]

- Operands are stored with the batch and the heads first. Others are copied so; copies, views and packed projections of
  the model are read through. (Copies were measured against reading heads in place: as fast or faster.)
- Heads that share keys in groups have two axes, of groups and of heads in a group, so that all indices are linear.
- Literal factors of queries, keys, scores and masks become one factor of the scores (`literal_factors.py`).
- Weights are normalized after the second contraction, as in FlashAttention: one product per result instead of one per
  weight.

Rounding: each of these moves a multiplication across a sum, so that a result has one rounding error where it had one
per term, or the other way round; the bound of the whole is the same. A sum of exponentials is 0
only without keys, or for a row that is masked whole, or NaN, where the model asks for zeros.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.expr.algebra.bounds import Bounds
from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Axis, Computation, Reducer, View
from tilewright.expr.nodes import Binary, Buffer, Const, Expr, Load, Var, const
from tilewright.expr.operations import select, unary
from tilewright.expr.pattern import product_operands
from tilewright.expr.traversal import free_vars, is_one, loads, post_order, replace_loads
from tilewright.graph.canonicalize.attention_site import AttentionSite, attention_sites
from tilewright.graph.canonicalize.def_use import DefUse
from tilewright.graph.canonicalize.literal_factors import ONE, Factor, combined, scale_innermost, scaled
from tilewright.graph.canonicalize.split_projections import split_projections
from tilewright.graph.canonicalize.storage import StoredElement, role_order, split_places, stored_element
from tilewright.graph.inline_elementwise import inline_scalars
from tilewright.graph.program import Program, Step, eliminate_dead_steps, step_outputs
from tilewright.graph.read_through_views import read_through_views
from tilewright.names import unique_name


def canonicalize_attention(program: Program) -> Program:
    """The program with every attention in one form; the program itself where it has none."""
    plain = inline_scalars(read_through_views(program))
    uses = DefUse(plain)
    taken = set(plain.buffer_names)
    replaced: dict[Buffer, list[Step]] = {}
    for site in attention_sites(uses):
        roles = _roles_of(site, uses)
        if roles is not None:
            replaced[site.result.output] = _Emitter(site, roles, uses, taken).run()
    if not replaced:
        return program
    steps: list[Step] = []
    for s in plain.steps:
        steps += replaced.get(s.output, [s]) if isinstance(s, Computation) else [s]
    return split_projections(without_dead_steps(replace(plain, steps=tuple(steps))))


def without_dead_steps(program: Program) -> Program:
    """The program without steps, constants and names of values that nothing needs."""
    outputs = {b.name for _, b in program.outputs}
    steps = eliminate_dead_steps(program.steps, outputs)
    read = {b.name for s in steps for b in s.inputs} | outputs
    live = read | {b.name for s in steps for b in step_outputs(s)} | {b.name for b in program.inputs}
    return replace(
        program,
        steps=tuple(steps),
        constants={n: data for n, data in program.constants.items() if n in read},
        values={n: b for n, b in program.values.items() if b.name in live},
    )


@dataclass(frozen=True, slots=True)
class _Roles:
    """The axes of an attention in canonical order, and what the axes of its contractions are among them.

    Attributes:
        outer: axes of batch and heads, then that of the queries.
        keys: axis of the keys.
        depth: axis of the features of queries and keys.
        columns: axis of the features of values.
        of_masked: the new variable of each axis of the masked scores.
        of_scores: that of each axis of the contraction of queries and keys.
        of_mix: that of each axis of the contraction of weights and values.
        queries: load of the queries, in the contraction.
        key_load: load of the keys.
        ungrouped: the same with one axis for the heads of queries, where several of them share keys; None elsewhere.
    """

    outer: tuple[Axis, ...]
    keys: Axis
    depth: Axis
    columns: Axis
    of_masked: Mapping[Var, Expr]
    of_scores: Mapping[Var, Expr]
    of_mix: Mapping[Var, Expr]
    queries: Load
    key_load: Load
    ungrouped: "_Roles | None" = None


def _roles_of(site: AttentionSite, uses: DefUse) -> _Roles | None:
    """The roles of the axes of a site; None where they are not those of attention."""
    scores, last = site.scores, site.scores.axes[-1].var
    operands = product_operands(scores.body)
    if operands is None or any(x.buffer.name in uses.program.constants for x in (*operands, site.values)):
        return None
    used = [{v for i in x.indices for v in free_vars(i)} for x in operands]
    if (last in used[0]) == (last in used[1]):
        return None
    key_place = 0 if last in used[0] else 1
    outer = list(range(len(scores.axes) - 1))
    candidates = [k for k in outer if scores.axes[k].var not in used[key_place]]
    if not candidates:
        return None
    query = candidates[-1]
    order = [k for k in outer if k != query] + [query]
    axes = tuple(Axis(Var(f"i{n}"), scores.axes[k].extent) for n, k in enumerate(order))
    keys = Axis(Var(f"i{len(axes)}"), scores.axes[-1].extent)
    depth = Axis(Var("r0"), scores.reduce_axes[0].extent)
    new = {k: a.var for k, a in zip(order, axes, strict=True)} | {len(outer): keys.var}
    of_masked: dict[Var, Expr] = {a.var: new[k] for k, a in enumerate(site.masked_axes)}
    of_scores: dict[Var, Expr] = {a.var: new[k] for k, a in enumerate(scores.axes)}
    of_scores[scores.reduce_axes[0].var] = depth.var
    of_mix: dict[Var, Expr] = {i: new[k] for k, i in enumerate(site.weights.indices[:-1]) if isinstance(i, Var)}
    columns = [a for a in site.mix.axes if a.var not in of_mix and not is_one(a.extent)]
    if len(columns) != 1 or any(not isinstance(i, Var) and not is_one(site.scores.axes[k].extent)
                                for k, i in enumerate(site.weights.indices[:-1])):  # fmt: skip
        return None
    column = Axis(Var(f"i{len(axes)}"), columns[0].extent)
    of_mix |= {columns[0].var: column.var, site.mix.reduce_axes[0].var: keys.var}
    of_mix |= {a.var: const(0) for a in site.mix.axes if a.var not in of_mix}
    if site.result.output.shape != site.mix.output.shape or not _sizes_agree(site, of_mix, (*axes, keys)):
        return None
    roles = _Roles(
        axes, keys, depth, column, of_masked, of_scores, of_mix, operands[1 - key_place], operands[key_place]
    )  # fmt: skip
    return _with_groups(roles, (*scores.axes, *scores.reduce_axes), uses)


def _with_groups(roles: _Roles, reads: Sequence[Axis], uses: DefUse) -> _Roles:
    """The roles with two axes for heads that share keys in groups: of groups, and of heads in a group.

    An index such as h // 4 of the keys is no linear one; with an axis for groups that of every operand is.
    """
    stored = stored_element(roles.key_load, reads, uses).indices
    quotients = [e for i in stored for e in post_order(substitute(i, roles.of_scores)) if isinstance(e, Binary)]
    for place, a in enumerate(roles.outer[:-1]):
        size = next((e.b for e in quotients if e.op == "floordiv" and e.a is a.var), None)
        if not isinstance(size, Const) or not isinstance(a.extent, Const) or a.extent.value % size.value:
            continue
        heads = (Axis(Var(f"i{place}"), a.extent // size), Axis(Var(f"i{place + 1}"), size))
        before = tuple(Axis(Var(f"i{k}"), x.extent) for k, x in enumerate(roles.outer[:place]))
        after = tuple(Axis(Var(f"i{k + place + 2}"), x.extent) for k, x in enumerate(roles.outer[place + 1 :]))
        outer, last = (*before, *heads, *after), Var(f"i{len(roles.outer) + 1}")
        keys, column = Axis(last, roles.keys.extent), Axis(last, roles.columns.extent)
        renamed: dict[Var, Expr] = dict(zip((x.var for x in roles.outer[:place]), (x.var for x in before), strict=True))
        renamed |= dict(zip((x.var for x in roles.outer[place + 1 :]), (x.var for x in after), strict=True))
        renamed |= {a.var: heads[0].var * size + heads[1].var, roles.keys.var: last}
        of_masked, of_scores, of_mix = (
            _substituted(x, renamed) for x in (roles.of_masked, roles.of_scores, roles.of_mix)
        )
        return replace(
            roles, outer=outer, keys=keys, columns=column, of_masked=of_masked, of_scores=of_scores, of_mix=of_mix,
            ungrouped=roles,
        )  # fmt: skip
    return roles


def _substituted(places: Mapping[Var, Expr], renamed: Mapping[Var, Expr]) -> dict[Var, Expr]:
    return {v: substitute(e, renamed) for v, e in places.items()}


def _sizes_agree(site: AttentionSite, of_mix: Mapping[Var, Expr], axes: Sequence[Axis]) -> bool:
    """Whether the axes that both contractions walk have the same extents in both."""
    extents: dict[Expr, Expr] = {a.var: a.extent for a in axes}
    shared = [a for a in (*site.mix.axes, *site.mix.reduce_axes) if a.var in site.weights.indices]
    return len(site.weights.indices) == len(axes) and all(extents[of_mix[a.var]] is a.extent for a in shared)


@dataclass(slots=True)
class _Emitter:
    """Emits the canonical stages of a site.

    Attributes:
        site: the attention.
        roles: of its axes.
        uses: of the program.
        taken: names of buffers.
        steps: emitted so far.
    """

    site: AttentionSite
    roles: _Roles
    uses: DefUse
    taken: set[str]
    steps: list[Step] = field(default_factory=list[Step])

    def run(self) -> list[Step]:
        """The stages; the last one writes the site's result."""
        site, roles = self.site, self.roles
        outer, keys = roles.outer, roles.keys
        reads = (*site.scores.axes, *site.scores.reduce_axes)
        place = tuple(a.var for a in outer)
        query, query_factor = self._operand(roles.queries, reads, roles.of_scores, (*outer, roles.depth))
        key, key_factor = self._operand(roles.key_load, reads, roles.of_scores, (*outer[:-1], roles.depth, keys))
        scores = self._emit("scores", (*outer, keys), query * key, Reducer.SUM, (roles.depth,), site.scores.label)
        factor = combined(query_factor, key_factor)
        masked = self._emit(
            "masked", (*outer, keys), self._score(scores, factor), label=self._writer_label(site.masked)
        )  # fmt: skip
        element = Load(masked, (*place, keys.var))
        label = site.powers.label
        largest = self._emit_row("max", element, Reducer.MAX)
        shift = Load(largest, place)
        if site.masks_rows and not site.clears_nan:
            body = select(shift.equals(float("-inf")), const(0, shift.dtype), shift)
            shift = Load(self._emit("shift", outer, body, label=label), place)
        power = unary("exp", element - shift)
        if site.clears_nan:
            # weights are NaN exactly in rows whose maximum is infinite or NaN
            power = select(unary("abs", shift) < float("inf"), power, const(0, power.dtype))
        powers = Load(self._emit("powers", (*outer, keys), power, label=label), element.indices)
        total = Load(self._emit_row("sum", powers, Reducer.SUM), place)
        one, zero = const(1, total.dtype), const(0, total.dtype)
        inverse = self._emit("inverse", outer, select(total.equals(0.0), zero, one / total), label=label)
        self._mix(powers, Load(inverse, place))
        return self.steps

    def _mix(self, powers: Load, inverse: Load) -> None:
        """Emits the weighted sums of values, their normalization, and a copy where the model orders axes otherwise."""
        site, roles = self.site, self.roles
        reads = (*site.mix.axes, *site.mix.reduce_axes)
        computed = (*roles.outer, roles.columns)
        reduced = Axis(Var("r0"), roles.keys.extent)
        of_mix = {v: reduced.var if e is roles.keys.var and v is site.mix.reduce_axes[0].var else e
                  for v, e in roles.of_mix.items()}  # fmt: skip
        value, factor = self._operand(site.values, reads, of_mix, (*roles.outer[:-1], reduced, roles.columns))
        weight = Load(powers.buffer, (*powers.indices[:-1], reduced.var))
        sums = self._emit("sums", computed, weight * value, Reducer.SUM, (reduced,), site.mix.label)
        index = tuple(a.var for a in computed)
        body = scaled(Load(sums, index) * inverse, factor)
        target, plain = site.result, roles.ungrouped or roles
        axes = (*plain.outer, plain.columns)
        order = [plain.of_mix[a.var] for a in site.mix.axes]
        proper = [a.var for a in axes if not is_one(a.extent)]
        is_in_order = [i for i in order if isinstance(i, Var) and i in proper] == proper
        if is_in_order and sums.shape == target.output.shape:
            self.steps.append(Computation(target.output, computed, (), body, None, target.label))
            return
        normalized = self._emit("normalized", computed, body, label=target.label)
        if is_in_order:  # dimensions of size 1 are elsewhere
            self.steps.append(View(target.output, normalized, target.label))
            return
        back = {i: a.var for i, a in zip(order, target.axes, strict=True) if isinstance(i, Var)}
        whole = self._reshaped(normalized, tuple(a.extent for a in axes))
        copy = Load(whole, tuple(back.get(a.var, const(0)) for a in axes))
        self.steps.append(Computation(target.output, target.axes, (), copy, None, target.label))

    def _score(self, scores: Buffer, factor: Factor) -> Expr:
        """The masked score over the results of the contraction, which lack a factor."""
        site = self.site
        (accumulator,) = [x for x in loads(site.score) if x.buffer == site.scores.output]

        def term(e: Expr, f: Factor) -> Expr:
            if isinstance(e, Load):
                found = stored_element(e, site.masked_axes, self.uses, f, until_plain=True)
                return scaled(Load(found.buffer, found.indices), found.factor)
            return scaled(replace_loads(e, lambda x: self._read_through_copies(x)), f)

        score = scale_innermost(site.score, accumulator, ONE, factor, term)
        moved = substitute(score, self.roles.of_masked)
        index = tuple(a.var for a in (*self.roles.outer, self.roles.keys))
        return replace_loads(moved, lambda x: Load(scores, index) if x.buffer == site.scores.output else x)

    def _read_through_copies(self, x: Load) -> Load:
        if x.buffer == self.site.scores.output:
            return x
        found = stored_element(x, self.site.masked_axes, self.uses, until_plain=True)
        return Load(found.buffer, found.indices)

    def _operand(
        self, x: Load, reads: Sequence[Axis], renamed: Mapping[Var, Expr], axes: tuple[Axis, ...]
    ) -> tuple[Load, Factor]:
        """A load of an operand that is stored in the order of the given axes, the last two in any order, and the
        factor that it lacks."""
        found = stored_element(x, reads, self.uses)
        extents = {a.var: a.extent for a in axes}
        bounds = Bounds.from_loops(extents.items())
        indices = tuple(substitute(i, renamed, bounds) for i in found.indices)
        found = StoredElement(found.buffer, indices, found.factor)
        places = tuple(
            p for i, n in zip(found.indices, found.buffer.shape, strict=True) for p in split_places(i, n, extents)
        )
        stored = self._reshaped(found.buffer, tuple(n for _, n in places))
        index = tuple(i for i, _ in places)
        roles = {a.var: k for k, a in enumerate(axes)}
        order = role_order(index, stored.shape, roles)
        if order is None or len(set(order)) < len(order):
            return _over_axes(x, renamed), ONE
        inner = len(axes) - 2
        is_in_order = [r for r in order if r < inner] == sorted(r for r in order if r < inner) and all(
            r >= inner for r in order[len([r for r in order if r < inner]) :]
        )
        is_whole = len([1 for n in stored.shape if not is_one(n)]) == len(order)
        if is_in_order and is_whole:
            return Load(stored, index), found.factor
        label = self._copy_label(x, found.buffer)
        return self._copy(stored, index, roles, is_in_order, label), found.factor

    def _copy_label(self, x: Load, stored: Buffer) -> str:
        """The node that a copy of an operand takes the place of: the one that the contraction reads, such as a
        transpose; that of the contraction where it reads what is stored."""
        writer = self.uses.writers.get(x.buffer)
        if x.buffer != stored and isinstance(writer, Computation | View):
            return writer.label
        return self.site.mix.label if x is self.site.values else self.site.scores.label

    def _copy(
        self, stored: Buffer, index: tuple[Expr, ...], roles: Mapping[Var, int], keeps_order: bool, label: str
    ) -> Load:
        """A load of a copy whose dimensions are in the order of the axes that walk them, or in that of storage."""
        walked = [
            (next(roles[v] for v in free_vars(i) if v in roles), k)
            for k, (i, n) in enumerate(zip(index, stored.shape, strict=True))
            if not is_one(n) and free_vars(i) & roles.keys()
        ]  # fmt: skip
        dims = [k for _, k in (walked if keeps_order else sorted(walked))]
        axes = tuple(Axis(Var(f"i{n}"), stored.shape[k]) for n, k in enumerate(dims))
        place = {k: a.var for k, a in zip(dims, axes, strict=True)}
        body = Load(stored, tuple(place.get(k, i) for k, i in enumerate(index)))
        copy = self._emit("heads", axes, body, label=label)
        return Load(copy, tuple(index[k] for k in dims))

    def _reshaped(self, b: Buffer, shape: tuple[Expr, ...]) -> Buffer:
        if shape == b.shape:
            return b
        view = Buffer(self._name("view"), shape, b.dtype)
        self.steps.append(View(view, b, self.site.scores.label))
        return view

    def _emit_row(self, name: str, element: Load, reducer: Reducer) -> Buffer:
        """Emits a reduction over the keys."""
        reduced = Axis(Var("r0"), self.roles.keys.extent)
        body = Load(element.buffer, (*element.indices[:-1], reduced.var))
        return self._emit(name, self.roles.outer, body, reducer, (reduced,), self.site.powers.label)

    def _emit(
        self, name: str, axes: tuple[Axis, ...], body: Expr, reducer: Reducer | None = None,
        reduced: tuple[Axis, ...] = (), label: str = "",
    ) -> Buffer:  # fmt: skip
        output = Buffer(self._name(name), tuple(a.extent for a in axes), body.dtype)
        self.steps.append(Computation(output, axes, reduced, body, reducer, label))
        return output

    def _writer_label(self, b: Buffer) -> str:
        writer = self.uses.computation(b)
        return "" if writer is None else writer.label

    def _name(self, what: str) -> str:
        name = unique_name(f"{self.site.result.output.name}_{what}", self.taken, separator="")
        self.taken.add(name)
        return name


def _over_axes(x: Load, renamed: Mapping[Var, Expr]) -> Load:
    """A load over other variables."""
    return Load(x.buffer, tuple(substitute(i, renamed) for i in x.indices))
