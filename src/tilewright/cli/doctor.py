"""`tilewright doctor`: facts about this machine and installation, and the threads that a call uses."""

import argparse
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from tilewright.cli.common import Result, Verbs, add_threads_option, size_text
from tilewright.cli.machine import describe_machine
from tilewright.errors import MachineError, OptionError, pluralize
from tilewright.machine import Target, host, thread_count
from tilewright.machine.choice import choose_machine
from tilewright.machine.origin import Origin
from tilewright.machine.threads import VARIABLES
from tilewright.runtime.openmp import find_openmp
from tilewright.version import __version__

PACKAGES = ("numpy", "llvmlite", "onnx", "ml_dtypes", "onnxruntime", "torch", "hypothesis", "pytest")
"""Packages whose versions matter to reports; those after `ml_dtypes` are optional."""


def add(verbs: Verbs) -> argparse.ArgumentParser:
    """Adds the verb to a parser."""
    parser = verbs.add_parser("doctor", help="describe this machine and installation", description=__doc__)
    parser.add_argument(
        "--machine", action="store_true", help="the description of the machine that programs are constructed for"
    )
    parser.add_argument(
        "--calibrate", action="store_true", help="measure peak, bandwidths and latencies (some seconds) and keep them"
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the description for `compile --machine FILE`")
    parser.add_argument("--target", metavar="NAME", help="describe the machine of another target")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the machine's roofline")
    add_threads_option(parser)
    return parser


def execute(options: argparse.Namespace) -> Result:
    """Collects the facts."""
    if options.machine or options.calibrate or (options.svg or options.save or options.target) is not None:
        return describe_machine(options)
    data = facts(options.threads)
    return Result(data, _text(data), optional=False)


def facts(threads: int | None = None) -> dict[str, Any]:
    """All facts that a bug report needs.

    Args:
        threads: the number that a call asks for.
    """
    machine, target = host(), Target.host()
    return {
        "tilewright": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "machine": {
            "arch": machine.arch,
            "model": machine.model,
            "cpus": machine.cpus,
            "quota": machine.quota,
            "memory": machine.memory,
            "caches": [
                {"level": c.level, "kind": c.kind, "bytes": c.bytes, "line": c.line, "shared_by": c.shared_by}
                for c in machine.caches
            ],
        },
        "target": {
            "name": str(target),
            "triple": target.triple,
            "cpu": target.cpu,
            "features": list(target.required),
            "vector_bits": target.vector_bits,
            "vector_registers": target.vector_registers,
        },
        "description": _description(target),
        "threads": _threads(threads),
        "openmp": _openmp(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _description(target: Target) -> dict[str, Any]:
    """The default machine description of programs."""
    try:
        choice = choose_machine(None, target)
    except MachineError as error:
        return {"name": None, "problem": str(error)}
    machine = choice.machine
    return {"name": machine.name, "origin": str(choice.origin), "cores": machine.cores, "sha256": choice.sha256}


def _threads(asked: int | None) -> dict[str, Any]:
    if asked is not None:
        return {"count": thread_count(asked), "reason": "--threads"}
    reason = "cores that this process may use"
    for name in reversed(VARIABLES):
        if os.environ.get(name, "").strip():
            reason = f"environment variable {name}"
    if reason.startswith("cores") and host().quota is not None:
        reason = "the smaller of the cores that this process may use and its control group's quota"
    try:
        return {"count": thread_count(), "reason": reason}
    except OptionError as error:
        return {"count": None, "reason": str(error)}


def _openmp() -> dict[str, Any]:
    try:
        library = find_openmp()
    except OptionError as error:
        return {"path": None, "parallel": False, "problem": str(error)}
    return {"path": library.path, "parallel": library.is_parallel}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _description_text(description: dict[str, Any]) -> str:
    if "problem" in description:
        return description["problem"]
    origin = "by features" if description["origin"] == Origin.FEATURES else description["origin"]
    if description["origin"] != Origin.STORED:
        # which its hash, and so the keys of records and caches, have in them
        origin += f" with this machine's caches and {pluralize(description['cores'], 'core')}"
    return f"{description['name']} ({origin}, sha256 {description['sha256'][:16]})"


def _text(data: dict[str, Any]) -> str:
    machine, target, threads = data["machine"], data["target"], data["threads"]
    caches = ", ".join(f"L{c['level']} {c['kind'].lower()} {size_text(c['bytes'])}" for c in machine["caches"])
    quota = "no quota" if machine["quota"] is None else f"quota of {machine['quota']:g}"
    packages = ", ".join(f"{name} {version or 'not installed'}" for name, version in data["packages"].items())
    omp = data["openmp"]
    lines = [
        f"tilewright  {data['tilewright']}",
        f"python      {data['python']}",
        f"system      {data['system']}",
        f"machine     {machine['model'] or machine['arch']}, {pluralize(machine['cpus'], 'CPU')}, {quota}",
        f"memory      {size_text(machine['memory'])}",
        f"caches      {caches or 'unknown'}",
        f"target      {target['name']}, {target['vector_registers']} vectors of {target['vector_bits']} bits",
        f"features    {' '.join(target['features'])}",
        f"description {_description_text(data['description'])}",
        f"threads     {threads['count']} ({threads['reason']})",
        f"openmp      {omp.get('problem') or (omp['path'] if omp['parallel'] else 'none: models run on one thread')}",
        f"packages    {packages}",
    ]
    return "\n".join(lines)
