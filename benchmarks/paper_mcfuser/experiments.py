"""The experiments: each returns a result of numbers and texts, which `tables.py` prints."""

import time
from typing import Any

from benchmarks.paper_mcfuser.candidates import Candidates, fastest
from benchmarks.paper_mcfuser.workloads import PRUNED, Workload, func_of, unfused_models
from tilewright.driver.compile import make_compilation
from tilewright.driver.options import CompileOptions
from tilewright.loops.ir import Func
from tilewright.loops.private_memory import literal_bytes
from tilewright.machine.calibration_store import machine_for
from tilewright.machine.shipped import machine_named
from tilewright.machine.target import Target
from tilewright.optimize.chains.expression import ChainTiling
from tilewright.optimize.chains.extract_chain import extract_chain
from tilewright.optimize.chains.model import tiles_of
from tilewright.optimize.chains.pruning import ChainSpace, Variant
from tilewright.optimize.chains.search import MODEL_ALONE, SearchSettings, search

Result = dict[str, Any]

BEST_MEASURED_AGAIN = 20
"""The fastest candidates, which are timed once more together."""


def prune(machine: str, variant: Variant) -> Result:
    """What every rule leaves of the space of the paper's example (Fig. 7)."""
    start = time.perf_counter()
    described = machine_for(Target.host()) if machine == "this machine" else machine_named(machine)
    counts = ChainSpace.of(extract_chain(func_of(PRUNED)), described, variant).counts()
    return {
        "expressions": list(counts.expressions),
        "waterfall": [list(x) for x in counts.waterfall],
        "seconds": time.perf_counter() - start,
    }


def seconds_of_search(w: Workload, variant: Variant) -> Result:
    """How long searches take, and what they choose: by the model alone, with the cost model of trees as the measurer,
    and with measured times (Table IV)."""
    result: Result = {}
    for name, settings in (("model", MODEL_ALONE), ("trees", SearchSettings()), ("measured", SearchSettings())):
        start = time.perf_counter()
        candidates = Candidates(w, variant)
        measure = {
            "model": None,
            "trees": lambda x, c=candidates: list(map(c.tree_time, x)),
            "measured": candidates.times,
        }
        found = search(candidates.space, settings, measure[name])
        seconds = time.perf_counter() - start
        best = found.best
        result[name] = {
            "seconds": seconds, "generations": found.generations, "estimated": found.estimated,
            "measured": found.measured, "ns": None if best is None else best.nanoseconds,
            "tiling": "" if best is None else candidates.text(best.tiling),
        }  # fmt: skip
    return result


def compare_model(w: Workload, count: int) -> Result:
    """Estimated and measured times of candidates of the pruned space (Fig. 11), with their footprints (Fig. 10)."""
    candidates = Candidates(w)
    drawn = candidates.sample(count)
    measured = candidates.times([tiling for tiling, _, _ in drawn])
    rows: dict[ChainTiling, Result] = {}
    for (tiling, model, estimate), nanoseconds in zip(drawn, measured, strict=True):
        func = candidates.lowered(tiling)
        if nanoseconds is None or func is None:
            continue
        tiles = tiles_of(candidates.chain, [dict(tiling.tiles)])
        rows[tiling] = {
            "tiling": candidates.text(tiling), "ns": nanoseconds, "model": estimate,
            "trees": candidates.tree_time(tiling), "estimated bytes": float(model.result_footprint(tiles)[0]),
            "stack bytes": sum(literal_bytes(func).values()), "again": None,
        }  # fmt: skip
    again = sorted(rows, key=lambda t: rows[t]["ns"])[:BEST_MEASURED_AGAIN]
    for tiling, nanoseconds in zip(again, candidates.times(again), strict=True):
        rows[tiling]["again"] = nanoseconds
    return {"drawn": len(drawn), "refused": len(drawn) - len(rows), "candidates": list(rows.values())}


def compare_kernels(w: Workload) -> Result:
    """The fused kernels that measured searches of both spaces choose beside the kernels without fusion (Fig. 8); one
    thread, in turns."""
    candidates = Candidates(w)
    funcs: dict[str, Func] = {}
    tilings: dict[str, str] = {}
    for variant in Variant:
        own = Candidates(w, variant)
        best = search(own.space, SearchSettings(), own.times).best
        func = None if best is None else own.lowered(best.tiling)
        if best is not None and func is not None:
            funcs[variant.value] = func
            tilings[variant.value] = own.text(best.tiling)
    parts: list[str] = []
    for name, model in unfused_models(w).items():
        for k, kernel in enumerate(make_compilation(model, CompileOptions()).kernels):
            parts.append(f"{name}{k}")
            funcs[parts[-1]] = kernel.func
    times = fastest(funcs, candidates.data)
    return {
        **{v.value: times.get(v.value) for v in Variant},
        "unfused": sum(times[p] for p in parts),
        "parts": {p: times[p] for p in parts},
        "tilings": tilings,
        "flops": 2.0 * w.batch * w.m * w.n * (w.k + w.h),
    }
