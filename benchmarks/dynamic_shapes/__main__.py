"""Command line of the benchmark of dynamic shapes.

    python -m benchmarks.dynamic_shapes --prepare             # compiles what will be measured
    python -m benchmarks.dynamic_shapes [--kinds "gemm rows,attention"] [--models 4] [--shapes 8] [--seed 0]
                                        [--threads 2] [--seconds 60] [--again] [--write]

Random shapes inside declared ranges: our artifact of dynamic sizes against our own compilation for exactly that shape,
and against ONNX Runtime and OpenVINO with dynamic dimensions, every engine in a process of its own, in turns. Kinds:
products by rows, convolutions with SiLU by batch and by picture size, attention with its projections by length, small
networks by picture size; their channels and heads are drawn as well. Models of the zoo are kinds of their own
("bert_base_dyn", "resnet50_dyn", "resnet18_dyn", "yolov8n", "ppocr_det", "ppocr_rec"), which `--kinds zoo` names
together. Results are kept as soon as they are known, so that a run that was stopped, or that stops itself after
`--seconds`, goes on where it was.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

from benchmarks.common.experiments import Experiment, is_of_these_sources, run_experiments
from benchmarks.common.report import RESULTS, section, write_section
from benchmarks.common.result_store import CIRCUMSTANCES, ResultStore
from benchmarks.dynamic_shapes import tables
from benchmarks.dynamic_shapes.artifacts import dynamic_artifact, static_artifact
from benchmarks.dynamic_shapes.measure import ModelMeasurement
from benchmarks.dynamic_shapes.models import DynamicModel, all_models
from benchmarks.dynamic_shapes.shapes import draw_shapes
from benchmarks.zoo.model import label
from benchmarks.zoo.models import MODELS
from tilewright.measure.engines import check_installed

MODULE = "benchmarks.dynamic_shapes"
PART = "shapes"


def main() -> int:
    """Measures what is missing; the status is 3 where something is left."""
    options = _parser().parse_args()
    models = _selected(all_models(options.seed, options.models), options.kinds)
    if not models:
        print(f"no models of {options.kinds}", file=sys.stderr)
        return 2
    if options.prepare:
        _prepare(models, options)
        return 0
    store, deadline = ResultStore(RESULTS / "dynamic_shapes.json"), time.monotonic() + options.seconds
    left = run_experiments(
        PART, _experiments(models, options), store, MODULE,
        lambda r: not options.again and is_of_these_sources(r), deadline,
    )  # fmt: skip
    text = tables.markdown({n: r for n, r in store.all(PART).items() if is_of_these_sources(r)})
    print(text)
    if options.write:
        facts = {**(store.get(CIRCUMSTANCES, PART) or {}), "threads": str(options.threads)}
        write_section("dynamic_shapes", section(facts, EXPLANATION, text))
    print(f"{left} results are left; run the same command again" if left else "complete", file=sys.stderr)
    return 3 if left else 0


EXPLANATION = """Ratios above 1: the artifact of dynamic sizes is faster. "of static" is the time of our own \
compilation for exactly that shape over that of the dynamic one."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", help="kinds or names of models, separated by commas (default: all but the zoo's)")
    parser.add_argument("--models", type=int, default=4, help="models drawn of each kind (default 4)")
    parser.add_argument("--shapes", type=int, default=8, help="shapes of each model (default 8)")
    parser.add_argument("--seed", type=int, default=0, help="of models and shapes (default 0)")
    parser.add_argument("--threads", type=int, default=2, help="of every engine (default 2)")
    parser.add_argument("--peers", default="onnxruntime,openvino", help="other engines (default: %(default)s)")
    parser.add_argument("--optimizer", help="of the artifacts of dynamic sizes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing new after so long")
    parser.add_argument("--prepare", action="store_true", help="compile alone")
    parser.add_argument("--again", action="store_true", help="measure also what is known")
    parser.add_argument("--write", action="store_true", help="update benchmarks/README.md")
    return parser


def _selected(models: Sequence[DynamicModel], kinds: str | None) -> list[DynamicModel]:
    """The models of kinds, or names."""
    asked = None if kinds is None else set(kinds.split(","))
    if asked is None:
        return [m for m in models if m.name not in MODELS]
    return [m for m in models if {m.kind, m.name} & asked or ("zoo" in asked and m.name in MODELS)]


def _prepare(models: Sequence[DynamicModel], options: argparse.Namespace) -> None:
    end = time.monotonic() + options.seconds
    for model in models:
        for shape in draw_shapes(model, options.shapes, options.seed):
            if time.monotonic() > end:
                print("more is left", file=sys.stderr)
                return
            static_artifact(model, shape)
        dynamic_artifact(model, options.optimizer)
        print(f"{model.name}: ready", file=sys.stderr, flush=True)


def _experiments(models: Sequence[DynamicModel], options: argparse.Namespace) -> Iterator[Experiment]:
    """One per shape; the engines of a model start with its first measurement and end with the next model."""
    peers = [p for p in options.peers.split(",") if p]
    for peer in peers:
        check_installed(peer)
    for model in models:
        started: list[ModelMeasurement] = []

        def measure(shape: dict[str, int], model: DynamicModel = model, started: list[ModelMeasurement] = started):
            if not started:
                started.append(ModelMeasurement(model, peers, options.threads, options.optimizer))
            return started[0].measure(shape)

        try:
            for shape in draw_shapes(model, options.shapes, options.seed):
                beside = f" {options.optimizer}" if options.optimizer else ""
                yield f"{model.name} {label(shape)}{beside}", lambda s=shape: measure(dict(s))
        finally:
            for x in started:
                x.close()


if __name__ == "__main__":
    sys.exit(main())
