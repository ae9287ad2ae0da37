"""Chooses the machine description for which programs are constructed.

A build is reproducible elsewhere only if it records the machine that it was made for. So the description is chosen once
per compilation, by name, by file or by default, and its name, origin and hash are recorded in the artifact.
"""

import os
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from tilewright.errors import MachineError, OptionError
from tilewright.machine.calibration_store import load_calibration
from tilewright.machine.model import Machine, parse_machine, read_machine, to_json
from tilewright.machine.origin import Origin
from tilewright.machine.shipped import describe_host, generic_machine, machine_named, shipped_machines
from tilewright.machine.target import Target


@dataclass(frozen=True, slots=True)
class MachineChoice:
    """A description and its origin."""

    machine: Machine
    origin: Origin

    @property
    def sha256(self) -> str:
        """Hash of the description's content, equal for equal descriptions of any origin."""
        return sha256(to_json(self.machine).encode()).hexdigest()

    def for_target(self, target: Target) -> Machine:
        """The machine restricted to the target's vector width and number of vector registers. Vectors of half its own
        width are the widest then, and as many execute in a cycle as the machine's datapath has room for.

        Raises:
            MachineError: the machine is of another architecture.
        """
        machine = self.machine
        if machine.arch != target.arch:
            what = f"it is of architecture {machine.arch}, the target {target} of {target.arch}"
            hint = "choose a machine and a target of one architecture"
            raise MachineError(what, where=f"machine {machine.name!r}", hint=hint)
        bits, registers = target.vector_bits, target.vector_registers
        return replace(
            machine.with_ports_for(bits),
            vector_bits=min(machine.vector_bits, bits),
            vector_registers=min(machine.vector_registers, registers),
        )


def choose_machine(machine: "Machine | str | os.PathLike[str] | None", target: Target) -> MachineChoice:
    """The machine description for a target; nothing is measured.

    Args:
        machine: a description, the name of a shipped one, or a file. By default, for this machine's own target, its
            stored calibration, else the description of its microarchitecture, by model or by features; for another
            target a generic machine of that instruction set.
        target: the target of the generated code.

    Raises:
        MachineError: there is no such machine or file, the file does not describe a valid machine (lists all of its
            problems), or its architecture is not the target's.
        OptionError: the argument is something else.
    """
    choice = _default(target) if machine is None else _from_argument(machine)
    choice.for_target(target)
    return choice


def _default(target: Target) -> MachineChoice:
    if target != Target.host():
        return MachineChoice(generic_machine(target), Origin.GENERIC)
    calibration = load_calibration()
    if calibration is not None:
        return MachineChoice(calibration, Origin.STORED)
    return MachineChoice(*describe_host())


def _from_argument(machine: "Machine | str | os.PathLike[str]") -> MachineChoice:
    if isinstance(machine, Machine):
        return MachineChoice(_validated(machine), Origin.ARGUMENT)
    if not isinstance(machine, (str, os.PathLike)):  # pyright: ignore[reportUnnecessaryIsInstance] - no types
        what = f"expected a name, a file or a Machine, got {type(machine).__name__}"
        raise OptionError(what, where="argument 'machine'")
    if isinstance(machine, str) and machine in shipped_machines():
        named = machine_named(machine)
        # generic ones identify no processor
        return MachineChoice(named, Origin.SHIPPED if named.identify else Origin.GENERIC)
    if isinstance(machine, str) and not _is_file_name(machine):
        hint = f"use one of {', '.join(shipped_machines())}, or a file such as ./{machine or 'mine'}.json"
        raise MachineError(f"there is no machine {machine!r}", where="machine", hint=hint)
    return MachineChoice(read_machine(Path(machine)), Origin.FILE)


def _validated(machine: Machine) -> Machine:
    """A machine passed by a program, validated like a file."""
    where = "argument 'machine'"
    try:
        text = to_json(machine)
    except (TypeError, ValueError) as error:
        hint = "its fields are texts, Python's int and float, and tuples of `Level`"
        raise MachineError(f"holds what is no plain value: {error}", where=where, hint=hint) from error
    return parse_machine(text, where)


def _is_file_name(text: str) -> bool:
    return os.sep in text or text.endswith(".json") or os.path.isfile(text)
