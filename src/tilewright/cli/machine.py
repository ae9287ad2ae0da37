"""`tilewright doctor --machine`: the machine description of the cost model, calibration, and the roofline."""

import argparse
import json
import sys

from tilewright.cli.common import Result, size_text
from tilewright.cli.output_files import check_writable, write_text
from tilewright.errors import OptionError
from tilewright.machine import Target, thread_count
from tilewright.machine.calibration_store import calibration_path, save_calibration
from tilewright.machine.choice import choose_machine
from tilewright.machine.model import Machine, to_json
from tilewright.machine.origin import Origin
from tilewright.report.roofline import roofline


def describe_machine(options: argparse.Namespace) -> Result:
    """Describes the machine of a target; measures and draws it where the options say so.

    Raises:
        MachineError: the machine is busy, or a stored calibration is damaged.
        OptionError: calibration of another machine than this one, or a picture that can't be written.
    """
    for option, path in (("--svg", options.svg), ("--save", options.save)):
        if path is not None:
            check_writable(path, option)
    target = Target.parse("host" if options.target is None else options.target)
    threads = thread_count(options.threads)
    place, origin = "", Origin.STORED
    if options.calibrate:
        machine, place = _calibrate(target, threads)
    else:
        choice = choose_machine(None, target)
        machine, origin = choice.machine, choice.origin
        place = str(calibration_path()) if origin is Origin.STORED else ""
    # the threads of this machine do not limit another one
    is_limited = options.threads is not None or target == Target.host()
    cores = min(threads, machine.cores) if is_limited else machine.cores
    if options.svg is not None:
        write_text(options.svg, roofline(machine, cores), "--svg", options.quiet)
    if options.save is not None:
        write_text(options.save, to_json(machine), "--save", options.quiet)
    data = {**json.loads(to_json(machine)), "file": place or None}
    return Result(data, _text(machine, cores, _origin_text(origin, place, target)), optional=False)


def _calibrate(target: Target, threads: int) -> tuple[Machine, str]:
    if target != Target.host():
        what = f"only this machine can be measured, its target is {Target.host()}"
        raise OptionError(what, where=f"--target {target}", hint="leave --target out")
    from tilewright.measure.calibrate import calibrate  # here because `doctor` alone should not load LLVM's linker

    machine = calibrate(threads, lambda line: print(line, file=sys.stderr))
    return machine, str(save_calibration(machine))


def _origin_text(origin: Origin, place: str, target: Target) -> str:
    match origin:
        case Origin.STORED:
            return f"measured, {place}"
        case Origin.FEATURES:
            hint = "`tilewright doctor --calibrate` measures this processor"
            return f"chosen by features, as the processor's model is not a known one; {hint}"
        case Origin.GENERIC if target == Target.host():
            return "typical of its instruction set; `tilewright doctor --calibrate` measures this processor"
        case Origin.GENERIC:
            return "typical of its instruction set"
        case _:
            return "a description that came with the package, with this machine's caches and number of cores"


def _text(machine: Machine, cores: int, source: str) -> str:
    lines = [
        f"machine     {machine.name} ({source})",
        f"cores       {machine.cores} at {machine.ghz:g} GHz",
        f"vectors     {machine.vector_registers} of {machine.vector_bits} bits, {machine.fma_pipes} multiply-adds"
        f" per cycle, result after {machine.fma_cycles} cycles",
        f"peak        {machine.gflops(1):.4g} GFLOP/s on one core, {machine.gflops(cores):.4g} on {cores}",
        *([f"pages       {machine.tlb_entries} translated without delay"] if machine.gpu is None else []),
        f"threads     {machine.sync_us:g} us to start and join",
        "level          bytes   line  ways   latency   one core   all cores",
    ]
    lines += [
        f"{x.name:<8}{size_text(x.bytes):>12} {x.line:>6} {x.ways or '-':>5} {x.latency_ns:>6g} ns"
        f" {x.core_gbs:>6g} GB/s {x.total_gbs:>6g} GB/s"
        for x in machine.levels
    ]
    return "\n".join(lines)
