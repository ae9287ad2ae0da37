"""Manifest entries of kernels with several programs: selector and estimates over the model's symbolic dimensions."""

from collections.abc import Sequence

from tilewright.driver.artifact_names import ArtifactNames
from tilewright.driver.kernel_build.kernels import BoundKernel, BoundUnit
from tilewright.expr.nodes import Expr, Var
from tilewright.expr.printer import show
from tilewright.expr.traversal import free_vars, replace_variables
from tilewright.lower.kernel_variants import KernelVariants
from tilewright.runtime.manifest_meta import VariantsSpec


def variant_specs(units: Sequence[BoundUnit], names: ArtifactNames) -> tuple[VariantsSpec, ...]:
    """The kernels of a program that have several programs, in order of execution.

    Args:
        units: of the program.
        names: of its symbols in the artifact.
    """
    bound = ((u, u.compiled.func) for u in units if isinstance(u, BoundKernel))
    return tuple(_variants_spec(u, code, names) for u, code in bound if isinstance(code, KernelVariants))


def _variants_spec(unit: BoundKernel, kernel: KernelVariants, names: ArtifactNames) -> VariantsSpec:
    """The entry of a kernel; its expressions are not simplified, as that takes longer than all else of an entry."""
    selector = replace_variables(kernel.selector, unit.sizes)
    times = [replace_variables(e.picoseconds, unit.sizes) for e in unit.compiled.estimates]
    used = sorted({v for e in (selector, *times) for v in free_vars(e)}, key=lambda v: v.name)
    numbered: dict[Var, Expr] = {v: v.renamed(f"s{k}") for k, v in enumerate(used)}
    labels = unit.kernel.label.split(" + ")
    return VariantsSpec(
        kernel.name,
        tuple(labels),
        tuple(names.symbol_name(v) for v in used),
        show(replace_variables(selector, numbered)),
        tuple(e.program for e in unit.compiled.estimates) or tuple(f.name for f in kernel.programs),
        tuple(show(replace_variables(e, numbered)) for e in times),
    )
