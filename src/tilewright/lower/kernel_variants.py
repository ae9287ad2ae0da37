"""Multi-version kernels: several programs with one interface, of which the sizes of a call select one.

Every program is a function of its own, verified by itself. The kernel has the parameters of all of them: operands and
results once, constants prepacked in one layout once, workspace for each (only one program runs, so the memory plan
places those of all programs in one piece of memory).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.expr.algebra.simplify import substitute
from tilewright.expr.computation import Computation
from tilewright.expr.nodes import Buffer, Expr, Load, Var
from tilewright.expr.traversal import free_vars, replace_loads
from tilewright.loops.ir import Func
from tilewright.lower.prepack_constants import PrepackedKernel
from tilewright.tile.shape_samples import value_of


@dataclass(frozen=True, slots=True)
class KernelVariants:
    """A kernel of several programs.

    Attributes:
        name: of the kernel.
        params: its buffers; those of the programs by the names in `arguments`.
        symbols: its sizes, those of the programs among them.
        programs: the functions.
        arguments: per program the name of the kernel's parameter for each of its own.
        selector: the index of the program that runs, an int64 expression over the symbols (`selected_program`).
    """

    name: str
    params: tuple[Buffer, ...]
    symbols: tuple[Var, ...]
    programs: tuple[Func, ...]
    arguments: tuple[tuple[str, ...], ...]
    selector: Expr


KernelCode = Func | KernelVariants
"""What becomes one native function: a program, or several."""


def programs_of(kernel: KernelCode) -> tuple[Func, ...]:
    """The programs of a kernel."""
    return kernel.programs if isinstance(kernel, KernelVariants) else (kernel,)


def selected_program(selector: Expr | None, sizes: Mapping[Var, int], programs: int) -> int:
    """The index of the program that runs at sizes.

    Args:
        selector: over the symbols; None for a single program.
        sizes: of all symbols of the selector.
        programs: how many there are; an index beyond them runs the first one.
    """
    index = 0 if selector is None else value_of(selector, sizes)
    return index if 0 <= index < programs else 0


@dataclass(frozen=True, slots=True)
class MergedKernel:
    """The programs of a kernel as one.

    Attributes:
        code: the programs.
        prepacked: the computations of compile time; their outputs are parameters by name.
        scratch: per program the parameters that are workspace, as its own buffers with the kernel's names.
    """

    code: KernelCode
    prepacked: tuple[Computation, ...]
    scratch: tuple[tuple[Buffer, ...], ...]


def merge_programs(
    name: str, programs: Sequence[PrepackedKernel], selector: Expr | None, symbols: Sequence[Var]
) -> MergedKernel:
    """The kernel of one or several programs of the same computations.

    Args:
        name: of the kernel.
        programs: the programs, their constants prepacked.
        selector: which of them runs; None for a single one.
        symbols: those of the untransformed kernel, which order the result's.
    """
    if selector is None:
        (only,) = programs
        return MergedKernel(only.func, only.prepacked, (only.scratch,))
    packed: dict[Computation, str] = {}
    params: dict[str, Buffer] = {}
    arguments: list[tuple[str, ...]] = []
    scratch: list[tuple[Buffer, ...]] = []
    for k, program in enumerate(programs):
        names = _packed_names(program.prepacked, k, packed)
        names |= {b.name: _unique(b.name, k) for b in program.scratch}
        renamed = [p.renamed(names.get(p.name, p.name)) for p in program.func.params]
        params |= {p.name: p for p in renamed if p.name not in params}
        arguments.append(tuple(p.name for p in renamed))
        scratch.append(tuple(b.renamed(names[b.name]) for b in program.scratch))
    used = free_vars(selector).union(*(p.func.symbols for p in programs))
    code = KernelVariants(
        name,
        tuple(params.values()),
        tuple(v for v in symbols if v in used),
        tuple(p.func for p in programs),
        tuple(arguments),
        selector,
    )
    prepacked = (replace(c, output=c.output.renamed(n)) for c, n in packed.items())
    return MergedKernel(code, tuple(prepacked), tuple(scratch))


def _packed_names(prepacked: Sequence[Computation], program: int, packed: dict[Computation, str]) -> dict[str, str]:
    """The names of a program's prepacked constants in the kernel; adds those that no earlier program has."""
    names: dict[str, str] = {}
    for c in prepacked:
        names[c.output.name] = packed.setdefault(_anonymous(c, names), _unique(c.output.name, program))
    return names


def _anonymous(c: Computation, names: Mapping[str, str]) -> Computation:
    """A prepacking without the names of its result and its axes, which reads others by their names in the kernel."""
    variables = {a.var: a.var.renamed(f"i{k}") for k, a in enumerate((*c.axes, *c.reduce_axes))}
    axes, reduce_axes = (tuple(replace(a, var=variables[a.var]) for a in x) for x in (c.axes, c.reduce_axes))
    body = substitute(replace_loads(c.body, lambda x: _renamed_load(x, names)), dict[Var, Expr](variables))
    return replace(c, output=c.output.renamed(""), axes=axes, reduce_axes=reduce_axes, body=body)


def _renamed_load(x: Load, names: Mapping[str, str]) -> Load:
    return Load(x.buffer.renamed(names[x.buffer.name]), x.indices) if x.buffer.name in names else x


def _unique(name: str, program: int) -> str:
    return f"{name}.v{program}"
