"""The front door for kernel engineers: tensor expressions in, loops to schedule, native code out.

A `Workbench` is a `Schedule`, so every primitive is a method and optimizers' schedules and hand-made ones are one kind
of thing; what it adds needs code generation, which the schedule layer must not know. That is why it lives here.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.driver.kernel_entry import kernel_text
from tilewright.driver.kernel_signature import KernelSignature
from tilewright.driver.native_kernel import NativeKernel
from tilewright.driver.oracle import CheckResult, compare, interpret_outputs
from tilewright.errors import DefinitionError
from tilewright.expr.computation import Computation
from tilewright.expr.define import collect_stages
from tilewright.expr.nodes import Buffer, Expr, Symbol, Var
from tilewright.expr.tensor import Tensor
from tilewright.expr.traversal import free_vars
from tilewright.layout.layout import Layout
from tilewright.layout.rewrite_stage import check_layout, rewrite_stage, stored_buffer
from tilewright.loops.ir import Func
from tilewright.loops.lowering import lower_to_loops
from tilewright.machine import Target
from tilewright.runtime.feeds import make_contiguous
from tilewright.schedule.schedule import Schedule
from tilewright.verify.verifier import verify

Array = np.ndarray[Any, Any]


class Workbench(Schedule):
    """A kernel being scheduled by hand: primitives as methods, and `show`, `check`, `inspect`, `build`.

    s = create_schedule(C)
    io, ii = s.split("i", 4)
    s.parallel(io)
    s.check()
    kernel = s.build(threads=2)
    """

    def build(self, target: Target | str | None = None, threads: int | None = None) -> NativeKernel:
        """The kernel as native code.

        Args:
            target: this machine by default; a name such as "x86-64-v3", or a `Target`.
            threads: threads per call; None asks the environment and the system.

        Raises:
            VerifyError: the loops are not well-formed.
            TargetError: there is no such target, or this machine can't run its code.
        """
        verify(self.func)
        return NativeKernel(self.func, Target.of(target), threads)

    def interpret(self, *arrays: object, seed: int | None = None, **named: object) -> Any:
        """The outputs of the loops as they are now, computed in NumPy; slow, but needs no target.

        Args:
            arrays: the inputs in order.
            seed: runs concurrent iterations in a shuffled order.
            named: inputs by name, and sizes that no input tells.
        """
        known = KernelSignature(self.func)
        feeds = known.bind_inputs(arrays, named)
        sizes = known.bind_sizes(feeds, named)
        results = interpret_outputs(self.func, {n: make_contiguous(n, a) for n, a in feeds.items()}, sizes, seed)
        return results[0] if len(results) == 1 else results

    def check(
        self,
        sizes: Mapping[str, int] | None = None,
        *,
        inputs: Mapping[str, Array] | None = None,
        native: bool = True,
        target: Target | str | None = None,
        threads: int | None = None,
        seed: int = 0,
        tolerance: float | None = None,
    ) -> CheckResult:
        """Compares the kernel with its untransformed loops on random inputs.

        Args:
            sizes: of the symbols; by default the smallest, and two combinations that are drawn; a part of them is
                enough where `inputs` tell the others.
            inputs: arrays by name instead of random ones.
            native: compare native code; False compares the loops, interpreted in NumPy in a shuffled order.
            target: as for `build`.
            threads: as for `build`.
            seed: of what is drawn.
            tolerance: how large an error may be, relative to the largest value of an output; by default what sums in
                another order need.

        Raises:
            MismatchError: an element differs by more; names it.
        """
        self.verify()
        func, free = self.func, KernelSignature(self.func).free_symbols
        kernel = self.build(target, threads) if native else None

        def run(feeds: Mapping[str, Array], known: Mapping[str, int]) -> Sequence[Array]:
            if kernel is None:
                return interpret_outputs(func, feeds, known, seed)
            told: dict[str, Any] = {name: known[name] for name in free}
            results = kernel(*feeds.values(), **told)
            return results if isinstance(results, tuple) else (results,)

        return compare(self.origin, run, sizes, inputs, seed, tolerance)

    def inspect(self, level: str = "loops", target: Target | str | None = None) -> str:
        """The kernel as text: "loops", "llvm" or "assembly", the latter two for any target."""
        return kernel_text(self.func, level, Target.of(target))


def create_schedule(
    *outputs: Tensor | Computation | Func,
    inputs: Sequence[Tensor | Buffer] | None = None,
    layouts: Mapping[str, Layout] | None = None,
    name: str = "",
) -> Workbench:
    """The untransformed loops of a kernel, to be scheduled.

    Args:
        outputs: the tensors that the kernel makes, in their order; or the computations of a kernel in an order of
            execution, whose outputs are those that none of them reads; or loops.
        inputs: the order of the inputs; that of their first use by default. An input that the expressions, once they
            are simplified, do not read is an input only where it is listed here.
        layouts: how tensors are stored, by name; the others row by row. The kernel's loops follow the layouts of the
            tensors that they write, and callers hand over inputs as `Layout.transform` stores them. What a layout
            stores at another input (`store_at`) is no input of its own.
        name: of the function; made of the outputs' names by default.

    Returns:
        A schedule whose block for each tensor has the tensor's name and whose loops have the names of the axes.

    Raises:
        DefinitionError: the tensors make no kernel.
        LayoutError: a layout does not fit its tensor.
        VerifyError: an index may leave its tensor; says which.
    """
    if len(outputs) == 1 and isinstance(outputs[0], Func):
        if inputs is not None or layouts or name:
            raise DefinitionError("loops have inputs, layouts and a name already", where="create_schedule")
        func = outputs[0]
    else:
        func = _lower_outputs(outputs, inputs, layouts or {}, name)
    verify(func)
    return Workbench(func)


def _lower_outputs(
    outputs: Sequence[object], inputs: Sequence[Tensor | Buffer] | None, layouts: Mapping[str, Layout], name: str
) -> Func:
    if not outputs:
        raise DefinitionError("no output is given", where="create_schedule")
    results: list[Buffer] = []
    if all(isinstance(o, Tensor) for o in outputs):
        tensors = [o for o in outputs if isinstance(o, Tensor)]
        for t in tensors:
            if t.stage is None:
                raise DefinitionError(f"{t.name!r} is an input; nothing computes it", where="create_schedule")
            if tensors.count(t) > 1:
                raise DefinitionError(f"output {t.name!r} is named twice", where="create_schedule", hint="name it once")
        found, stages = collect_stages(tensors)
        results = [t.plain_buffer for t in tensors]
        read = [t.plain_buffer for t in found]
    elif all(isinstance(o, Computation) for o in outputs):
        stages = tuple(o for o in outputs if isinstance(o, Computation))
        made = {s.output.name for s in stages}
        used = {b.name for s in stages for b in s.inputs}
        read = list({b.name: b for s in stages for b in s.inputs if b.name not in made}.values())
        results = [s.output for s in stages if s.output.name not in used]
    else:
        got = ", ".join(sorted({type(o).__name__ for o in outputs}))
        raise DefinitionError(f"expected tensors or computations, got {got}", where="create_schedule")
    known = {b.name: b for s in stages for b in (s.output, *s.inputs)}
    for tensor, layout in layouts.items():
        if tensor not in known:
            hint = f"there are {', '.join(sorted(known))}"
            raise DefinitionError(f"there is no tensor {tensor!r}", where="create_schedule, layouts", hint=hint)
        if not isinstance(layout, Layout):  # pyright: ignore[reportUnnecessaryIsInstance]
            what, hint = f"{tensor!r}: expected a Layout, got {layout!r}", "write Layout.of(shape) and its primitives"
            raise DefinitionError(what, where="create_schedule, layouts", hint=hint)
        check_layout(known[tensor], layout)
    stages = tuple(s for s in (rewrite_stage(s, layouts) for s in stages) if isinstance(s, Computation))
    # What is stored at another tensor is read from there: nobody has to hand it over a second time.
    attached = {a.other for layout in layouts.values() for a in layout.attached}
    needed = {b.name for s in stages for b in s.inputs}
    read = [b for b in read if b.name in needed or b.name not in attached]
    params = tuple(stored_buffer(b, layouts) for b in (*_ordered_inputs(read, inputs), *results))
    symbols = _used_symbols(params, stages)
    for v in symbols:
        if any(v is not other and v.name == other.name for other in symbols):
            what = f"two symbols of different ranges are both called {v.name!r}"
            raise DefinitionError(what, where="create_schedule", hint="make the symbol once, or give one another name")
        if v.name in known:
            raise DefinitionError(f"a tensor and a symbol are both called {v.name!r}", where="create_schedule")
    called = name or _identifier("_".join(b.name for b in results))
    if called != _identifier(called):
        raise DefinitionError(f"{name!r} is no C identifier", where="create_schedule, name")
    return lower_to_loops(called, stages, params, symbols)


def _identifier(text: str) -> str:
    return re.sub(r"^(?=[0-9])|[^A-Za-z0-9_]", "_", text) or "kernel"


def _ordered_inputs(read: Sequence[Buffer], inputs: Sequence[Tensor | Buffer] | None) -> list[Buffer]:
    """The inputs in the caller's order."""
    if inputs is None:
        return list(read)
    given = [i.plain_buffer if isinstance(i, Tensor) else i for i in inputs]
    for b in read:
        if b not in given:
            raise DefinitionError(f"input {b.name!r} is not listed", where="create_schedule, inputs")
    return given


def _used_symbols(params: Iterable[Buffer], stages: Iterable[Computation]) -> tuple[Var, ...]:
    """Every symbol, in the order of its first use."""
    expressions: list[Expr] = [n for p in params for n in p.shape]
    for s in stages:
        expressions += [*s.output.shape, *(a.extent for a in s.reduce_axes), s.body]
    found = (v for e in expressions for v in sorted(free_vars(e), key=lambda v: v.name) if isinstance(v, Symbol))
    return tuple(dict.fromkeys(found))
