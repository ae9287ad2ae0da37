"""Command line of the experiments of MCFuser's paper.

    python -m benchmarks.paper_mcfuser [--parts pruning,model] [--workloads G1,S1] [--candidates 60] [--again] [--write]

Parts, in their order: `pruning` (candidates that every rule leaves), `search` (seconds, and what is chosen), `model`
(estimated and measured times, and footprints, of candidates drawn from the pruned space), `kernels` (fused by MCFuser
and by Chimera, and unfused). Kernels run on one thread. Every result is kept as soon as it is known, so that a run that
was stopped goes on where it was. `--write` puts the tables into benchmarks/README.md.
"""

import argparse
import sys
from collections.abc import Callable, Iterator

from benchmarks.common.experiments import Experiment, is_of_these_sources, run_experiments
from benchmarks.common.report import RESULTS
from benchmarks.common.result_store import ResultStore
from benchmarks.paper_mcfuser import experiments, tables
from benchmarks.paper_mcfuser.workloads import WORKLOADS
from tilewright.optimize.chains.pruning import Variant

MODULE = "benchmarks.paper_mcfuser"
FILE = RESULTS / "paper_mcfuser.json"
MODEL_WORKLOADS = ("G1", "G2", "G3", "G4", "S7")
"""Those whose candidates are measured: the first four of the paper's table, as in Fig. 11, and an attention."""


def main() -> int:
    """Measures what is missing; the status is 3 where something failed."""
    options = _parser().parse_args()
    parts = options.parts.split(",")
    names = options.workloads.split(",") if options.workloads else []
    unknown = sorted(set(parts) - set(PARTS)) + sorted(set(names) - set(WORKLOADS))
    if unknown:
        print(f"unknown parts or workloads: {', '.join(unknown)}", file=sys.stderr)
        return 2
    store = ResultStore(FILE)
    failed = 0
    for part in parts:
        some = PARTS[part](names, options.candidates)
        failed += run_experiments(part, some, store, MODULE, lambda r: not options.again and is_of_these_sources(r))
    if options.write:
        tables.write(store)
    else:
        print(tables.markdown(store))
    return 3 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--workloads", help="only these, separated by commas")
    parser.add_argument("--candidates", type=int, default=60, help="measured per workload (default 60)")
    parser.add_argument("--again", action="store_true", help="measure also what is known")
    parser.add_argument("--write", action="store_true", help="update benchmarks/README.md")
    return parser


def _pruning_experiments(_names: list[str], _count: int) -> Iterator[Experiment]:
    for machine in ("this machine", "h200"):
        for variant in Variant:
            yield f"{machine}, {variant.value}", lambda m=machine, v=variant: experiments.prune(m, v)


def _search_experiments(names: list[str], _count: int) -> Iterator[Experiment]:
    for name in names or ("G1", "G4", "G10", "S1", "S9"):
        for variant in Variant:
            yield (
                f"{name}, {variant.value}",
                lambda n=name, v=variant: experiments.seconds_of_search(WORKLOADS[n], v),
            )


def _model_experiments(names: list[str], count: int) -> Iterator[Experiment]:
    for name in names or MODEL_WORKLOADS:
        yield name, lambda n=name: experiments.compare_model(WORKLOADS[n], count)


def _kernel_experiments(names: list[str], _count: int) -> Iterator[Experiment]:
    for name in names or WORKLOADS:
        yield name, lambda n=name: experiments.compare_kernels(WORKLOADS[n])


PARTS: dict[str, Callable[[list[str], int], Iterator[Experiment]]] = {
    "pruning": _pruning_experiments, "search": _search_experiments, "model": _model_experiments,
    "kernels": _kernel_experiments,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
