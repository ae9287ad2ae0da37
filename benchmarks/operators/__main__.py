"""Command line of the operator benchmarks.

    python -m benchmarks.operators [--groups gemm_large,depthwise] [--cases NAME,...] [--threads 2] [--optimizer NAME]
                                   [--seconds 2] [--no-kernels] [--log FILE] [--json FILE] [--write]
                                   [--section NAME] [--seed 1]

Every case runs in a process of its own: all engines on the same model and feeds, in alternating blocks with pauses.
The classes gemm_random, gemm_awkward, gemm_skinny, conv_strided and chain_random (two products in a row, attention) are
drawn by the seed, so that a table need not have sizes that somebody chose.
The summary has the geometric mean over each class of Tilewright's speed over the best peer's. `--write` puts the tables
into benchmarks/README.md and the complete results into benchmarks/results. With `--log` a run that was stopped goes on
where it was.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common import environment, plots, report
from benchmarks.common.isolation import Event, event_writer, run_isolated
from benchmarks.common.statistics import geometric_mean
from benchmarks.operators.cases import Case, all_cases, random_cases
from benchmarks.operators.measure import LEAST_BLOCKS, OURS, MachineLimit, measure_case
from benchmarks.operators.peers import PEERS

MODULE = "benchmarks.operators"
TIMEOUT_SECONDS = 600.0
DEFAULT_GROUPS = "gemm_large,gemm_small,conv_resnet50,depthwise,memory"
MAX_CACHED_BYTES = 32 << 20
"""Largest data of a case that may stay in the caches between calls."""


def main() -> int:
    """Measure and report; returns the process's exit status."""
    options = _parser().parse_args()
    cases = (*all_cases(), *random_cases(options.seed))
    if options.cases:
        wanted = options.cases.split(",")
        cases = tuple(c for c in cases if c.name in wanted)
    else:
        groups = options.groups.split(",")
        unknown = sorted(set(groups) - {c.group for c in cases})
        if unknown:
            print(f"unknown classes: {', '.join(unknown)}", file=sys.stderr)
            return 2
        cases = tuple(c for c in cases if c.group in groups)
    if options.events is not None:
        emit = event_writer(options.events)
        measure_case(cases[0], options.threads, options.optimizer, emit, options.seconds, options.kernels)
        return 0
    return _run(options, cases)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", default=DEFAULT_GROUPS, help=f"classes (default: {DEFAULT_GROUPS})")
    parser.add_argument("--cases", help="only these, separated by commas")
    parser.add_argument("--threads", type=int, default=2, help="threads of all engines (default: 2)")
    parser.add_argument("--optimizer", help="of Tilewright")
    parser.add_argument("--seed", type=int, default=1, help="of the classes that are drawn (default: 1)")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"),
        help=f"of a case, after which no round but the first {LEAST_BLOCKS} begins",
    )  # fmt: skip
    parser.add_argument("--no-kernels", dest="kernels", action="store_false", help="leave out kernels alone")
    parser.add_argument("--json", type=Path, help="write the complete results into this file")
    parser.add_argument("--log", type=Path, help="keep results here as soon as known; cases in it are not measured")
    parser.add_argument("--write", action="store_true", help="update benchmarks/README.md")
    parser.add_argument("--section", default="operators", help="of benchmarks/README.md, and name of results and plot")
    parser.add_argument("--events", type=Path, help=argparse.SUPPRESS)
    return parser


def _run(options: argparse.Namespace, cases: Sequence[Case]) -> int:
    arguments = ["--threads", str(options.threads), "--seed", str(options.seed)]
    arguments += ["--optimizer", options.optimizer] if options.optimizer else []
    arguments += ["--seconds", str(options.seconds)] + ([] if options.kernels else ["--no-kernels"])
    log: Path | None = options.log
    events = {} if log is None else read_log(log)
    for case in cases:
        # some cases are in two classes
        if case.name in events:
            continue
        events[case.name] = run_isolated(MODULE, ["--cases", case.name, *arguments], TIMEOUT_SECONDS)
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a") as file:
                file.write(json.dumps({"case": case.name, "events": events[case.name]}) + "\n")
        print(f"{case.name}: {' '.join(table_row(case, events[case.name])[1:])}", file=sys.stderr, flush=True)
    facts = environment.describe(f"python -m {MODULE} {' '.join(sys.argv[1:])}".strip())
    tables = report.markdown_table(HEADER, [table_row(c, events[c.name]) for c in cases])
    summary = report.markdown_table(SUMMARY_HEADER, summary_rows(cases, events))
    text = report.section({**facts, "threads": str(options.threads)}, summary, tables)
    print(text)
    if options.json is not None:
        report.write_json(options.json, facts, {c.name: events[c.name] for c in cases})
    if options.write:
        report.write_section(options.section, text)
        report.write_json(report.RESULTS / f"{options.section}.json", facts, {c.name: events[c.name] for c in cases})
        rows = [
            (c.name, c.group, r) for c in cases if (r := speed_over_best_peer(median_times(events[c.name]))) is not None
        ]
        plots.save(options.section, plots.bars("Speed over that of the best peer", rows))
    return 0 if all(median_times(events[c.name]).get(OURS) for c in cases) else 1


def read_log(path: Path) -> dict[str, list[Event]]:
    """The events of a log by case; an incomplete line is ignored."""
    events: dict[str, list[Event]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        events[entry["case"]] = entry["events"]
    return events


HEADER = ["case", "tilewright us", "spread", "noise", *(f"{p} us" for p in PEERS), "ratio", "of fastest blocks",
          "of limit", "kernel us", "torch's kernel us", "kernels' ratio", "copies", "others", "notes"]  # fmt: skip
SUMMARY_HEADER = ["class", "cases", "ratio to the best peer", "lowest", "ratio of fastest blocks", "lowest of these",
           "of the machine's limit"]  # fmt: skip


def median_times(events: Sequence[Event]) -> dict[str, float]:
    """Median seconds by engine."""
    return {e["engine"]: e["median_s"] for e in events if "median_s" in e}


def fastest_blocks(events: Sequence[Event]) -> dict[str, float]:
    """Seconds of the fastest block by engine, each the median of its calls: what others do to a shared machine for a
    while only ever adds time."""
    return {e["engine"]: min(e["blocks_s"]) for e in events if e.get("blocks_s")}


def speed_over_best_peer(seconds_by_engine: Mapping[str, float]) -> float | None:
    """The best peer's time over Tilewright's: more than 1 where Tilewright is faster."""
    peers = [seconds_by_engine[p] for p in PEERS if p in seconds_by_engine]
    return min(peers) / seconds_by_engine[OURS] if OURS in seconds_by_engine and peers else None


def kernel_times(events: Sequence[Event]) -> tuple[float | None, float | None]:
    """Median seconds of Tilewright's and of torch's kernels without conversions; an engine that has none to leave out
    is taken as it is."""
    seconds = median_times(events)
    ours, torch = seconds.get(f"{OURS} alone", seconds.get(OURS)), seconds.get("torch alone")
    return (None, None) if torch is None else (ours, min(torch, seconds.get("torch", torch)))


def block_spread(events: Sequence[Event]) -> float | None:
    """Difference of Tilewright's slowest and fastest block, relative to the median."""
    event = next((e for e in events if e.get("engine") == OURS and e.get("blocks_s")), None)
    return None if event is None else (max(event["blocks_s"]) - min(event["blocks_s"])) / event["median_s"]


def fraction_of_limit(case: Case, events: Sequence[Event]) -> float | None:
    """The machine's lower bound of the time over Tilewright's time."""
    limit = next((MachineLimit(e["gflops"], e["gbs"]) for e in events if "gflops" in e), None)
    ours = median_times(events).get(OURS)
    return None if limit is None or ours is None else limit.seconds(case, case.bytes < MAX_CACHED_BYTES) / ours


def table_row(case: Case, events: Sequence[Event]) -> list[str]:
    """One line of the table."""
    seconds = median_times(events)
    event = next((e for e in events if e.get("engine") == OURS and "median_s" in e), None)
    spread = "" if event is None else f"{(event['high_s'] - event['low_s']) / event['median_s']:.0%}"
    best = min((seconds[p] for p in PEERS if p in seconds), default=0.0)
    cells = [_microseconds(seconds.get(p), bold=seconds.get(p) == best) for p in PEERS]
    part = fraction_of_limit(case, events)
    others = next((f"{e['others']:.0%}" for e in events if "others" in e), "")
    kernel, rival = kernel_times(events)
    between, copies = block_spread(events), max((e.get("copies", 1) for e in events), default=1)
    notes = "; ".join(f"{e.get('engine', 'process')}: {e['error']}" for e in events if "error" in e)
    return [case.name, _microseconds(seconds.get(OURS)), spread, "" if between is None else f"{between:.0%}", *cells,
            *("" if speed is None else f"{speed:.2f}" for speed in (speed_over_best_peer(seconds),
            speed_over_best_peer(fastest_blocks(events)))),
            "" if part is None else f"{part:.0%}", _microseconds(kernel),
            _microseconds(rival), "" if kernel is None or rival is None else f"{rival / kernel:.2f}",
            "" if copies == 1 else str(copies), others, notes]  # fmt: skip


def _microseconds(seconds: float | None, bold: bool = False) -> str:
    if seconds is None:
        return ""
    text = f"{seconds * 1e6:.4g}"
    return f"**{text}**" if bold else text


def summary_rows(cases: Sequence[Case], events: Mapping[str, Sequence[Event]]) -> list[list[str]]:
    """One line per class: geometric means."""
    rows: list[list[str]] = []
    for group in dict.fromkeys(c.group for c in cases):
        group_cases = [c for c in cases if c.group == group]
        every = [
            [r for c in group_cases if (r := speed_over_best_peer(seconds(events[c.name]))) is not None]
            for seconds in (median_times, fastest_blocks)
        ]
        parts = [p for c in group_cases if (p := fraction_of_limit(c, events[c.name])) is not None]
        speeds = [
            cell for ratios in every for cell in (_geometric_mean_text(ratios), f"{min(ratios):.2f}" if ratios else "")
        ]
        rows.append([group, f"{len(every[0])} of {len(group_cases)}", *speeds, _geometric_mean_text(parts)])
    return rows


def _geometric_mean_text(values: Sequence[float]) -> str:
    positive = [v for v in values if v > 0]
    return f"{geometric_mean(positive):.2f}" if positive else ""


if __name__ == "__main__":
    sys.exit(main())
