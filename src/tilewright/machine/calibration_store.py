"""Stores the calibrated description of this machine in the user's cache folder, and selects the machine for a target.

The file's name has a fingerprint of the hardware. Another processor, other caches, another number of cores or another
version of the format has another fingerprint, so the calibration is not used there.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from tilewright.errors import MachineError
from tilewright.machine.host import Host, host
from tilewright.machine.model import FORMAT, Machine, read_machine, to_json
from tilewright.machine.shipped import generic_machine, host_machine
from tilewright.machine.target import Target

VARIABLE = "TILEWRIGHT_CACHE_DIR"


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The package's cache folder: TILEWRIGHT_CACHE_DIR, else XDG_CACHE_HOME/tilewright, else ~/.cache/tilewright."""
    environ = os.environ if environ is None else environ
    if environ.get(VARIABLE, ""):
        return Path(environ[VARIABLE])
    base = environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "tilewright"


def fingerprint(machine: Host | None = None) -> str:
    """Identifies the hardware that a calibration is valid for, as 16 hexadecimal digits: processor, caches, cores,
    features, format."""
    fields = asdict(host() if machine is None else machine)
    # without fields that change between two starts of one machine
    stable = {k: fields[k] for k in ("arch", "model", "cpus", "caches", "features")}
    return sha256(json.dumps([FORMAT, stable], sort_keys=True).encode()).hexdigest()[:16]


def calibration_path() -> Path:
    """The file of this machine's calibration."""
    return cache_folder() / f"machine-{fingerprint()}.json"


def save_calibration(machine: Machine) -> Path:
    """Stores the description of this machine; replaces an older one atomically.

    Raises:
        MachineError: the folder is not writable.
    """
    path = calibration_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            file.write(to_json(machine))
        os.replace(file.name, path)
    except OSError as error:
        where = f"calibration '{path}'"
        raise MachineError(f"cannot be written: {error.strerror}", where=where, hint=f"set {VARIABLE}") from error
    return path


def load_calibration() -> Machine | None:
    """The description that was measured on this machine; None without a calibration.

    Raises:
        MachineError: the file is damaged.
    """
    path = calibration_path()
    if not path.exists():
        return None
    try:
        machine = read_machine(path)
        if machine.arch != host().arch:
            raise MachineError(f"it describes {machine.arch}, this machine is {host().arch}")
    except MachineError as error:
        hint = "run `tilewright doctor --calibrate` again, or remove the file"
        raise MachineError(error.what, where=f"calibration '{path}'", hint=hint) from error
    return machine


def machine_for(target: Target) -> Machine:
    """The machine description for a target; nothing is measured.

    For this machine's own target it is the stored calibration, else the description of its microarchitecture; for
    another target a generic machine of that instruction set.
    """
    if target != Target.host():
        return generic_machine(target)
    return load_calibration() or host_machine()
