"""Command line of the zoo.

    python -m benchmarks.zoo build  [--models a,b] [--rebuild]
    python -m benchmarks.zoo list
    python -m benchmarks.zoo ops    [--models a,b]
    python -m benchmarks.zoo verify [--models a,b] [--threads 2] [--optimizer O] [--seeds 4] [--json FILE] [--write]
    python -m benchmarks.zoo bench  [--models a,b] [--threads 2] [--optimizer O] [--quick]   [--json FILE] [--write]
                                    [--beside O] [--section NAME] [--artifacts FOLDER]

Models that are not in the cache yet are built first. A run over the whole zoo with the default optimizer (or one with
--write) puts its table into benchmarks/README.md, into the verb's section or the one that `--section` names, and its
complete results into benchmarks/results. With --artifacts a run measures the artifacts that an earlier one left in the
folder, so that it needs a quiet machine for the measurement alone. The exit status is 1 if any model failed.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.common import environment, report
from benchmarks.common.isolation import Event, event_writer, run_isolated
from benchmarks.zoo import bench, bench_table
from benchmarks.zoo.model import CACHE, Model, build_model, label
from benchmarks.zoo.models import MODELS
from benchmarks.zoo.sources import WheelModel

MODULE = "benchmarks.zoo"
TIMEOUT_SECONDS = 1200.0


def main() -> int:
    """Run one command; returns the process's exit status."""
    options = _parser().parse_args()
    names = _names(options.models) if options.models else list(MODELS)
    unknown = sorted(set(names) - set(MODELS))
    if unknown:
        print(f"unknown models: {', '.join(unknown)}; there are {', '.join(MODELS)}", file=sys.stderr)
        return 2
    if options.events is not None:
        return _run_in_child(options, names[0])
    models = [MODELS[name] for name in names]
    if options.verb == "list":
        return _print_models(models)
    failed = _build_missing(models, options.rebuild)
    if options.verb == "ops":
        _print_operators([model for model in models if model.name not in failed])
    if options.verb in ("ops", "build"):
        return 1 if failed else 0
    return _measure(options, models, failed)


def _names(text: str) -> list[str]:
    """Names of models separated by commas, where "wheels" stands for all models out of wheels."""
    wheels = [name for name, model in MODELS.items() if isinstance(model.source, WheelModel)]
    return [name for part in text.split(",") for name in (wheels if part == "wheels" else [part])]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["build", "list", "ops", "verify", "bench"])
    parser.add_argument("--models", help="only these, separated by commas; wheels: those of wheels")
    parser.add_argument("--rebuild", action="store_true", help="export models again that are in the cache")
    parser.add_argument("--threads", type=int, default=2, help="threads of both engines (default: 2)")
    parser.add_argument("--optimizer", help="Tilewright's optimizer (default: the one it uses by itself)")
    parser.add_argument("--seeds", type=int, default=4, help="verify: random inputs per shape (default: 4)")
    parser.add_argument("--quick", action="store_true", help="bench: only the first shape of each model")
    parser.add_argument("--beside", help="bench: another of Tilewright's optimizers, compared with in the same run")
    parser.add_argument("--json", type=Path, help="write the complete results into this file")
    parser.add_argument("--write", action="store_true", help="update benchmarks/README.md even from some models only")
    parser.add_argument("--section", help="of benchmarks/README.md, and name of results (default: the verb)")
    parser.add_argument("--artifacts", type=Path, help="bench: compile into this folder, or take what is there")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_SECONDS, help="seconds per model (default: 1200)")
    parser.add_argument("--events", type=Path, help=argparse.SUPPRESS)
    return parser


def _run_in_child(options: argparse.Namespace, name: str) -> int:
    """The part that runs in a process of its own: one verb on one model."""
    emit = event_writer(options.events)
    if options.verb == "build":
        build_model(MODELS[name], rebuild=options.rebuild)
    elif options.verb == "verify":
        # Verification needs torch; nothing else in this process does.
        from benchmarks.zoo.verify import verify_model

        verify_model(name, options.threads, options.seeds, options.optimizer, emit)
    else:
        bench.bench_model(
            name, options.threads, options.quick, options.optimizer, options.beside, emit, options.artifacts
        )
    return 0


def _print_models(models: Sequence[Model]) -> int:
    for model in models:
        files = list(model.path.parent.iterdir()) if model.path.exists() else []
        state = f"{sum(file.stat().st_size for file in files) / 2**20:.0f} MiB" if files else "not built"
        shapes = ", ".join(label(sizes) for sizes in model.shapes)
        print(f"{model.name:18s} {state:10s} {shapes}")
    return 0


def _build_missing(models: Sequence[Model], rebuild: bool) -> dict[str, list[Event]]:
    """Build what is missing, one process per model; returns the events of those that failed."""
    failed: dict[str, list[Event]] = {}
    for model in models:
        if model.path.exists() and not rebuild:
            continue
        start = time.monotonic()
        flags = ["--rebuild"] if rebuild else []
        events = run_isolated(MODULE, ["build", "--models", model.name, *flags], TIMEOUT_SECONDS)
        errors = [event for event in events if "error" in event]
        state = errors[0]["error"] if errors else f"{time.monotonic() - start:.0f} s"
        print(f"build {model.name}: {state}", file=sys.stderr, flush=True)
        if errors:
            failed[model.name] = errors
    return failed


def _print_operators(models: Sequence[Model]) -> None:
    import onnx

    from benchmarks.zoo.ops_report import describe

    for model in models:
        print(f"===== {model.name}\n{describe(onnx.load(model.path, load_external_data=False))}\n")


def _measure(options: argparse.Namespace, models: Sequence[Model], failed: dict[str, list[Event]]) -> int:
    """Run verify or bench over the models and report."""
    header, rows = _table_of(options.verb)
    table: list[list[str]] = []
    events: dict[str, list[Event]] = {}
    bad: list[str] = []
    arguments = ["--threads", str(options.threads), "--seeds", str(options.seeds)]
    arguments += ["--quick"] if options.quick else []
    arguments += ["--optimizer", options.optimizer] if options.optimizer else []
    arguments += ["--beside", options.beside] if options.beside else []
    arguments += ["--artifacts", str(options.artifacts.resolve())] if options.artifacts else []
    for model in models:
        start = time.monotonic()
        events[model.name] = failed.get(model.name) or run_isolated(
            MODULE, [options.verb, "--models", model.name, *arguments], options.timeout
        )
        lines, passed = rows(model.name, events[model.name])
        table += lines
        if not passed:
            bad.append(model.name)
        print(f"{options.verb} {model.name}: {'ok' if passed else 'FAILED'} ({time.monotonic() - start:.0f} s)",
              file=sys.stderr, flush=True)  # fmt: skip
    facts = environment.describe(f"python -m benchmarks.zoo {' '.join(sys.argv[1:])}")
    summary = f"{len(models) - len(bad)} of {len(models)} models, {len(table)} shapes"
    summary += f"; failed: {', '.join(bad)}." if bad else "; none failed."
    summary += f" {bench_table.geometric_means(events)}" if options.verb == "bench" else ""
    text = report.section({**facts, "threads": str(options.threads)}, summary, report.markdown_table(header, table))
    print(text)
    if options.json is not None:
        report.write_json(options.json, facts, events)
    if options.write or not (options.models or options.quick or options.optimizer):
        name = options.section or options.verb
        report.write_section(name, text)
        report.write_json(report.RESULTS / f"{name}.json", facts, events)
    return 1 if bad else 0


def _table_of(verb: str) -> tuple[list[str], Callable[[str, Sequence[Event]], tuple[list[list[str]], bool]]]:
    if verb == "bench":
        return bench_table.HEADER, bench_table.rows
    from benchmarks.zoo import verify

    return verify.HEADER, verify.rows


if __name__ == "__main__":
    if not CACHE.parent.exists():
        CACHE.parent.mkdir(parents=True)
    sys.exit(main())
