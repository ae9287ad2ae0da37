"""Packed projections as several: x [W_q W_k W_v] + [b_q b_k b_v], of which every reader takes one part.

Readers of a part then read a tensor of their own, whatever else the model packs beside it, as where it has one
projection for each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.expr.computation import Axis, Computation, View
from tilewright.expr.nodes import Buffer, Const, Expr, Load, Var, const
from tilewright.expr.pattern import is_sum_of_products
from tilewright.expr.traversal import free_vars, is_one, loads, replace_loads
from tilewright.graph.canonicalize.def_use import DefUse, is_own_element
from tilewright.graph.ir import Array
from tilewright.graph.program import Program, Step
from tilewright.names import unique_name


@dataclass(frozen=True, slots=True)
class _Packed:
    """A packed projection.

    Attributes:
        stages: the contraction, and its epilogue if it has one.
        views: of the result; readers take one place of dimension `dim` of each.
        dim: the dimension of the parts.
        count: number of parts.
    """

    stages: tuple[Computation, ...]
    views: tuple[View, ...]
    dim: int
    count: int


def split_projections(program: Program) -> Program:
    """The program with packed projections by constant weights split, where every reader takes one part."""
    uses = DefUse(program)
    packed = [p for s in program.steps if isinstance(s, Computation) and (p := _packed_projection(s, uses)) is not None]
    taken, constants = set(program.buffer_names), dict(program.constants)
    replaced: dict[Buffer, list[Step]] = {}
    reads: dict[Buffer, dict[int, Buffer]] = {}
    for p in packed:
        for k, part in enumerate(_part_stages(p, constants, taken)):
            replaced.setdefault(p.stages[-1].output, []).extend(part)
            for v in p.views:
                shape = (*v.output.shape[: p.dim], *v.output.shape[p.dim + 1 :])
                name = unique_name(f"{v.output.name}_part{k}", taken)
                taken.add(name)
                view = View(Buffer(name, shape, v.output.dtype), part[-1].output, v.label)
                replaced[p.stages[-1].output].append(view)
                reads.setdefault(v.output, {})[k] = view.output
    if not packed:
        return program
    removed = {s.output for p in packed for s in p.stages} | set(reads)
    dims = {v.output: p.dim for p in packed for v in p.views}

    def load(x: Load) -> Load:
        if x.buffer not in dims:
            return x
        k = dims[x.buffer]
        part = x.indices[k]
        assert isinstance(part, Const)
        return Load(reads[x.buffer][int(part.value)], (*x.indices[:k], *x.indices[k + 1 :]))

    steps: list[Step] = []
    for s in program.steps:
        if isinstance(s, Computation | View) and s.output in removed:
            steps += replaced.get(s.output, [])
        else:
            steps.append(_as_view(replace(s, body=replace_loads(s.body, load))) if isinstance(s, Computation) else s)
    read = {b.name for s in steps for b in s.inputs} | {b.name for _, b in program.outputs}
    gone = {b.name for b in removed}
    return replace(
        program,
        steps=tuple(steps),
        constants={n: data for n, data in constants.items() if n in read},
        values={n: b for n, b in program.values.items() if b.name not in gone},
    )


def _as_view(c: Computation) -> Step:
    """A view in the place of a copy of a whole tensor in its own order."""
    x = c.body
    if c.is_reduction or not isinstance(x, Load) or not is_own_element(x, c):
        return c
    sizes = [[n for n in b.shape if not is_one(n)] for b in (x.buffer, c.output)]
    return View(c.output, x.buffer, c.label) if sizes[0] == sizes[1] else c


def _packed_projection(contraction: Computation, uses: DefUse) -> _Packed | None:
    """The packed projection that a contraction computes, None where it is none."""
    if not is_sum_of_products(contraction) or contraction.output.name in uses.pinned or not contraction.axes:
        return None
    stages = (contraction,)
    readers = uses.readers.get(contraction.output, [])
    if len(readers) == 1 and isinstance(readers[0], Computation):
        stages = (contraction, readers[0])
    last = stages[-1]
    views = [s for s in uses.readers.get(last.output, ()) if isinstance(s, View)]
    if last.is_reduction is (len(stages) > 1) or not uses.is_private(last.output, len(views)) or not views:
        return None
    rank = len(last.axes)
    dim = rank - 1
    counts = {_parts_read(v, last.output, dim, uses) for v in views}
    if len(counts) != 1 or not all(_can_cut(s, uses) for s in stages):
        return None
    count = counts.pop()
    if count is None or (len(stages) > 1 and not _reads_own_place(stages[1], contraction)):
        return None
    return _Packed(stages, tuple(views), dim, count)


def _parts_read(view: View, source: Buffer, dim: int, uses: DefUse) -> int | None:
    """The number of parts in which a view cuts the last dimension of its source, if every reader takes one part."""
    shape = view.output.shape
    if shape[:dim] != source.shape[:dim] or len(shape) <= dim + 1 or view.output.name in uses.pinned:
        return None
    count = shape[dim]
    if not isinstance(count, Const) or count.value < 2 or not all(isinstance(n, Const) for n in shape[dim:]):
        return None
    for reader in uses.readers.get(view.output, ()):
        if not isinstance(reader, Computation):
            return None
        if any(x.buffer == view.output and not isinstance(x.indices[dim], Const) for x in loads(reader.body)):
            return None
    return int(count.value)


def _can_cut(c: Computation, uses: DefUse) -> bool:
    """Whether the last axis occurs only as an index of constants, one of which a contraction reads, and of the stage
    before."""
    last = c.axes[-1].var
    hidden = replace_loads(c.body, lambda x: Load(x.buffer, tuple(const(0) if i is last else i for i in x.indices)))
    if last in free_vars(hidden):
        return False
    walked = [x for x in loads(c.body) if last in x.indices]
    return bool(walked) and all(
        x.buffer.name in uses.program.constants or (not c.is_reduction and x.buffer.shape == c.output.shape)
        for x in walked
    )


def _reads_own_place(epilogue: Computation, contraction: Computation) -> bool:
    """Whether an epilogue reads the results of a contraction at its own place, and no other tensor along its last axis
    but constants."""
    if epilogue.output.shape != contraction.output.shape:
        return False
    wide = [x for x in loads(epilogue.body) if x.buffer.shape == epilogue.output.shape]
    return all(is_own_element(x, epilogue) for x in wide) and any(x.buffer == contraction.output for x in wide)


def _part_stages(p: _Packed, constants: dict[str, Array], taken: set[str]) -> list[list[Computation]]:
    """The stages of every part; adds the parts of constants."""
    result: list[list[Computation]] = []
    size = int(_literal(p.stages[0].axes[-1].extent)) // p.count
    for k in range(p.count):
        outputs: dict[Buffer, Buffer] = {}
        part: list[Computation] = []
        for s in p.stages:
            name = unique_name(f"{s.output.name}_part{k}", taken)
            taken.add(name)
            output = Buffer(name, (*s.output.shape[:-1], const(size)), s.output.dtype)
            outputs[s.output] = output
            axes = (*s.axes[:-1], Axis(s.axes[-1].var, const(size)))
            body = _over_window(s.body, s.axes[-1].var, (k * size, size), outputs, constants, taken)
            part.append(replace(s, output=output, axes=axes, body=body))
        result.append(part)
    return result


def _over_window(
    body: Expr, last: Var, window: tuple[int, int], outputs: Mapping[Buffer, Buffer], constants: dict[str, Array],
    taken: set[str],
) -> Expr:  # fmt: skip
    """A body whose last axis walks a window of constants, which become constants of their own."""
    first, size = window

    def load(x: Load) -> Expr:
        if x.buffer in outputs:
            return Load(outputs[x.buffer], x.indices)
        if last not in x.indices:
            return x
        dims = [k for k, i in enumerate(x.indices) if i is last]
        places = tuple(slice(first, first + size) if k in dims else slice(None) for k in range(x.buffer.rank))
        name = unique_name(f"{x.buffer.name}_from{first}", taken)
        taken.add(name)
        constants[name] = constants[x.buffer.name][places]
        shape = tuple(const(size) if k in dims else n for k, n in enumerate(x.buffer.shape))
        return Load(Buffer(name, shape, x.buffer.dtype), x.indices)

    return replace_loads(body, load)


def _literal(e: Expr) -> int:
    assert isinstance(e, Const)
    return int(e.value)
