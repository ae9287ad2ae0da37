"""Report of variants: the programs of every kernel whose sizes are dynamic, and which of them runs at which sizes."""

from collections.abc import Sequence
from math import exp, log
from typing import Any

from tilewright.errors import pluralize
from tilewright.expr.printer import show
from tilewright.optimize.construct.variants import ProgramVariants
from tilewright.report.construction import Construction
from tilewright.report.shape_choice import PROGRAM_LEGEND


def text(kernels: Sequence[Construction]) -> str:
    """The variants of all kernels for people."""
    legend = [PROGRAM_LEGEND] if any(_variants(c) for c in kernels) else []
    return "\n".join([*legend, *(_text(c) for c in kernels)])


def _text(construction: Construction) -> str:
    head = f"{construction.kernel}: {', '.join(dict.fromkeys(construction.nodes))}"
    variants = _variants(construction)
    if variants is None:
        why = "its sizes are static" if not construction.task.func.symbols else "more would not be faster"
        return f"{head}\n  one program: {why}"
    lines = [head, f"  {pluralize(len(variants.programs), 'program')}, chosen by the sizes of a call"]
    lines += [f"    {k} {program}" for k, program in enumerate(variants.programs)]
    lines.append("  predicted time over that of the best program for each size, and that of one program for all")
    for shape, choice, regret, single in zip(
        variants.shapes, variants.choices, variants.regrets, variants.single, strict=True
    ):
        sizes = ", ".join(f"{construction.symbol_names[v.name]} {n}" for v, n in shape.items())
        lines.append(f"    {sizes:32s} program {choice}  {regret:5.2f}  {single:5.2f}")
    for name, ratios in (("these programs", variants.regrets), ("one program", variants.single)):
        lines.append(f"  {name}: geometric mean {_geomean(ratios):.2f}, worst {max(ratios):.2f}")
    return "\n".join(lines)


def _variants(construction: Construction) -> ProgramVariants | None:
    return None if construction.constructed is None else construction.constructed.variants


def _geomean(ratios: Sequence[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


def data(construction: Construction) -> dict[str, Any]:
    """The variants of a kernel as JSON values; regrets are ratios of predicted times."""
    head = {"kernel": construction.kernel, "nodes": list(construction.nodes)}
    variants = _variants(construction)
    if variants is None:
        return {**head, "programs": 1}
    names = construction.symbol_names
    rows = zip(variants.shapes, variants.choices, variants.regrets, variants.single, strict=True)
    return {
        **head,
        "programs": len(variants.programs),
        "selector": show(variants.selector),
        "sizes": [
            {
                "sizes": {names[v.name]: n for v, n in shape.items()},
                "program": k,
                "regret": regret,
                "one_program": single,
            }
            for shape, k, regret, single in rows
        ],
        "worst_regret": max(variants.regrets),
        "mean_regret": _geomean(variants.regrets),
    }
