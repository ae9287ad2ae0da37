"""Keys of machine code: everything that decides the bytes that are generated for a task."""

import json
from dataclasses import asdict
from functools import lru_cache
from hashlib import sha256
from typing import Any

from tilewright.codegen.generator_version import generator_version
from tilewright.machine import Target
from tilewright.machine.model import Machine, to_json
from tilewright.optimize.task import Task


def machine_code_key(task: Task, machine: Machine | None, program: str, generator: str | None = None) -> str:
    """The key of the code of a task's canonical function, 64 hexadecimal digits.

    Args:
        task: the kernel; its target counts with all features, not by name.
        machine: the description that the program is constructed for and that decides which loops use threads; None
            where neither depends on one.
        program: what turns the untransformed loops into those of the code: the JSON text of a trace, or an optimizer
            with its parameters ("gensor, seed 0").
        generator: version of the code generator, by default this one's.
    """
    described = None if machine is None else _machine_text(machine)
    fields = [task.hash, _target_fields(task.target), described, program, generator or generator_version()]
    return sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


@lru_cache(maxsize=8)
def _machine_text(machine: Machine) -> str:
    return to_json(machine)


@lru_cache(maxsize=8)
def _target_fields(target: Target) -> dict[str, Any]:
    return asdict(target)
