"""Tasks: kernels to be optimized, and what makes two of them the same.

A task is identified by the hash of its canonical form: the text of its untransformed loops without names
(`loops/canonical_form.py`), which states computations, shapes or ranges, element types and, in shapes and indices, the
layouts of stored tensors; which operands are constant; how computations are fused; shape samples; threads. Within a
model, between processes, in caches and in records a kernel is its task's hash.

A target is a field beside it, and so are a machine and the version of the code generator: what is known of a kernel on
one machine is looked up under the hash and these (`measure/machine_code_key.py`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

from tilewright.expr.nodes import Var
from tilewright.graph.fusion import Fusion
from tilewright.loops.canonical_form import CanonicalForm, canonical_form, text_without_literals
from tilewright.loops.ir import Func
from tilewright.machine import Target
from tilewright.machine.model import Machine
from tilewright.tile.shape_samples import ShapeSamples

IDENTITY_VERSION = 2
"""Version of the canonical form: hashes of different versions differ."""


# without slots, because cached properties need a place
@dataclass(frozen=True)
class Task:
    """One kernel to be optimized.

    Attributes:
        func: the untransformed loops.
        constants: names of parameters whose data is known at compile time, so that their layout is free.
        target: the target of code generation.
        fusion: how the computations of the function, its blocks, are fused.
        samples: shape samples of the function's symbols; by default those of the symbols' ranges.
        threads: number of threads that the kernel runs on; None for one per core of the machine.
    """

    func: Func
    constants: frozenset[str]
    target: Target
    fusion: Fusion
    samples: ShapeSamples | None = None
    threads: int | None = None

    @cached_property
    def form(self) -> CanonicalForm:
        """The canonical form of the loops."""
        return canonical_form(self.func)

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """What the task is, as JSON values over the names of the canonical form."""
        params = zip(self.form.params, self.form.func.params, strict=True)
        constants = [p.name for name, p in params if name in self.constants]
        return {
            "func": self.form.text,
            "constants": constants,
            "fusion": _encode_fusion(self.fusion),
            "samples": None if self.samples is None else _encode_samples(self.samples, self.form),
            "threads": self.threads,
        }

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the identity, in hexadecimal digits; equal in every process."""
        return _hash_of(self.identity)

    @cached_property
    def hash_without_literals(self) -> str:
        """The same of tasks that differ in the values of floating-point literals alone."""
        return _hash_of({**self.identity, "func": text_without_literals(self.form.text)})

    def with_samples(self, samples: ShapeSamples | None) -> "Task":
        """The same loops with other shape samples."""
        return _with_form(replace(self, samples=samples), self.form)

    def with_threads(self, threads: int | None) -> "Task":
        """The same loops for another number of threads."""
        return self if threads == self.threads else _with_form(replace(self, threads=threads), self.form)

    def machine_of_threads(self, machine: Machine) -> Machine:
        """A machine with as many of its cores as the kernel has threads."""
        return machine if self.threads is None else machine.with_cores(self.threads)

    def canonical(self) -> "Task":
        """The same task over its canonical function: tasks of one hash and target have equal ones."""
        names = dict(zip(self.form.params, (p.name for p in self.form.func.params), strict=True))
        renamed = dict(zip(self.form.symbols, self.form.func.symbols, strict=True))
        samples = None if self.samples is None else _rename(self.samples, renamed)
        constants = frozenset(names[c] for c in self.constants if c in names)
        func = self.form.func
        form = CanonicalForm(func, self.form.text, tuple(p.name for p in func.params), func.symbols)
        return _with_form(replace(self, func=func, constants=constants, samples=samples), form)


def _hash_of(identity: Mapping[str, Any]) -> str:
    text = json.dumps([IDENTITY_VERSION, identity], sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


def _with_form(task: Task, form: CanonicalForm) -> Task:
    """A task whose canonical form is known; making it takes longer than all else that tasks are asked for."""
    task.__dict__["form"] = form
    return task


def _encode_fusion(fusion: Fusion) -> dict[str, Any]:
    stages = [[x.role.value, x.epilogue] for x in fusion.stages]
    return {"pattern": fusion.pattern.value, "outer_rank": fusion.outer_rank, "stages": stages}


def _encode_samples(samples: ShapeSamples, form: CanonicalForm) -> dict[str, Any]:
    pairs = list(zip(form.symbols, form.func.symbols, strict=True))

    def sizes(shape: Mapping[Var, int]) -> dict[str, int]:
        return {new.name: shape[old] for old, new in pairs}

    return {
        "representative": sizes(samples.representative),
        "shapes": [sizes(s) for s in samples.shapes],
        "grid": [sizes(s) for s in samples.grid],
    }


def renamed_samples(samples: ShapeSamples, task: Task, equal: Task) -> ShapeSamples:
    """Samples of a task's symbols as those of a task with an equal function."""
    renamed = dict(zip(task.form.symbols, equal.form.symbols, strict=True))
    return samples if all(old is new for old, new in renamed.items()) else _rename(samples, renamed)


def _rename(samples: ShapeSamples, renamed: Mapping[Var, Var]) -> ShapeSamples:
    def sizes(shape: Mapping[Var, int]) -> dict[Var, int]:
        return {new: shape[old] for old, new in renamed.items()}

    shapes, grid = (tuple(sizes(s) for s in x) for x in (samples.shapes, samples.grid))
    return ShapeSamples(sizes(samples.representative), shapes, grid)
