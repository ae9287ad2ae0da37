"""Scheduling by hand: tensor expressions in, loops to schedule, native code out.

A `Workbench` is a `Schedule`, so that every primitive is a method and optimizers' and manual schedules are of one kind.
It adds what needs code generation, which the schedule layer does not import.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.driver.kernel_build.kernel_entry import kernel_text
from tilewright.driver.kernel_build.kernel_signature import KernelSignature
from tilewright.driver.kernel_build.native_kernel import NativeKernel
from tilewright.driver.kernel_build.oracle import CheckResult, compare, interpret_outputs
from tilewright.errors import DefinitionError, ScheduleError, pluralize
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
from tilewright.tile.lower_tree import lower_tree
from tilewright.tile.tree import TileTree
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

    def apply_tree(self, tree: TileTree) -> None:
        """Schedules the untransformed kernel by a tile tree: the loops of all of its computations as data.

        Raises:
            TreeError: the tree does not fit the kernel; lists every problem.
            ScheduleError: one of its steps is not legal for these loops; or the kernel has been scheduled already.
        """
        if self.trace:
            what = f"expected untransformed loops, got {pluralize(len(self.trace), 'step')} of a schedule"
            raise ScheduleError(what, where="apply_tree", hint="begin with `create_schedule`")
        self.apply(lower_tree(tree, self.func).trace)

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
        """The outputs of the current loops by the NumPy interpreter; slow, but needs no target.

        Args:
            arrays: the inputs in order.
            seed: shuffles concurrent iterations.
            named: inputs by name, and the sizes of free symbols.
        """
        signature = KernelSignature(self.func)
        feeds = signature.bind_inputs(arrays, named)
        sizes = signature.bind_sizes(feeds, named)
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
            sizes: sizes of the symbols, without those that `inputs` determine; by default the smallest sizes and two
                random combinations.
            inputs: arrays by name instead of random ones.
            native: whether to compare native code; False compares the interpreted loops in a shuffled order.
            target: as for `build`.
            threads: as for `build`.
            seed: seed of random sizes and inputs.
            tolerance: the largest error, relative to the largest value of an output; by default the error bound of
                sums in another order.

        Raises:
            MismatchError: an element differs by more; names it.
        """
        if native:
            kernel = self.build(target, threads)
        else:
            kernel = None
            self.verify()
        func, free_symbols = self.func, KernelSignature(self.func).free_symbols

        def run(feeds: Mapping[str, Array], values: Mapping[str, int]) -> Sequence[Array]:
            if kernel is None:
                return interpret_outputs(func, feeds, values, seed)
            free_sizes: dict[str, Any] = {name: values[name] for name in free_symbols}
            results = kernel(*feeds.values(), **free_sizes)
            return results if isinstance(results, tuple) else (results,)

        return compare(self.origin, run, sizes, inputs, seed, tolerance)

    def inspect(self, level: str = "loops", target: Target | str | None = None) -> str:
        """The kernel as text: "loops", "lowered", "llvm" or "assembly", all but the first for any target."""
        return kernel_text(self.func, level, Target.of(target))


def create_schedule(
    *outputs: Tensor | Computation | Func,
    inputs: Sequence[Tensor | Buffer] | None = None,
    layouts: Mapping[str, Layout] | None = None,
    name: str = "",
) -> Workbench:
    """The untransformed loops of a kernel, to be scheduled.

    Args:
        outputs: the output tensors in order; or a kernel's computations in order of execution, whose outputs are the
            results that none of them reads; or loops.
        inputs: the order of the inputs, by default that of their first use. An input that the simplified expressions
            do not read is an input only if it is listed here.
        layouts: storage layouts of tensors by name; the others are row-major. The kernel's loops follow the layouts of
            the tensors that they write, and callers pass inputs as `Layout.transform` stores them. A tensor that a
            layout stores at another input (`store_at`) is no input.
        name: the function's name; by default made of the outputs' names.

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
    stages, inputs_read, results = _kernel_stages(outputs)
    buffers = {b.name: b for s in stages for b in (s.output, *s.inputs)}
    _check_layouts(layouts, buffers)
    stages = tuple(s for s in (rewrite_stage(s, layouts) for s in stages) if isinstance(s, Computation))
    # A tensor that is stored at another one is read from there: callers do not pass it separately.
    attached = {a.other for layout in layouts.values() for a in layout.attached}
    accessed = {b.name for s in stages for b in s.inputs}
    inputs_read = [b for b in inputs_read if b.name in accessed or b.name not in attached]
    params = tuple(stored_buffer(b, layouts) for b in (*_ordered_inputs(inputs_read, inputs), *results))
    symbols = _used_symbols(params, stages)
    _check_symbols(symbols, buffers)
    func_name = name or _identifier("_".join(b.name for b in results))
    if func_name != _identifier(func_name):
        raise DefinitionError(f"{name!r} is no C identifier", where="create_schedule, name")
    return lower_to_loops(func_name, stages, params, symbols)


def _kernel_stages(outputs: Sequence[object]) -> tuple[tuple[Computation, ...], list[Buffer], list[Buffer]]:
    """The computations of a kernel, the inputs that they read, and the outputs.

    Raises:
        DefinitionError: the outputs make no kernel.
    """
    if not outputs:
        raise DefinitionError("no output is given", where="create_schedule")
    if all(isinstance(o, Tensor) for o in outputs):
        tensors = [o for o in outputs if isinstance(o, Tensor)]
        for t in tensors:
            if t.stage is None:
                raise DefinitionError(f"{t.name!r} is an input; nothing computes it", where="create_schedule")
            if tensors.count(t) > 1:
                raise DefinitionError(f"output {t.name!r} is named twice", where="create_schedule", hint="name it once")
        inputs, stages = collect_stages(tensors)
        return tuple(stages), [t.plain_buffer for t in inputs], [t.plain_buffer for t in tensors]
    if all(isinstance(o, Computation) for o in outputs):
        stages = tuple(o for o in outputs if isinstance(o, Computation))
        written = {s.output.name for s in stages}
        read = {b.name for s in stages for b in s.inputs}
        inputs = list({b.name: b for s in stages for b in s.inputs if b.name not in written}.values())
        return stages, inputs, [s.output for s in stages if s.output.name not in read]
    types = ", ".join(sorted({type(o).__name__ for o in outputs}))
    raise DefinitionError(f"expected tensors or computations, got {types}", where="create_schedule")


def _check_layouts(layouts: Mapping[str, Layout], buffers: Mapping[str, Buffer]) -> None:
    for tensor, layout in layouts.items():
        if tensor not in buffers:
            hint = f"there are {', '.join(sorted(buffers))}"
            raise DefinitionError(f"there is no tensor {tensor!r}", where="create_schedule, layouts", hint=hint)
        if not isinstance(layout, Layout):  # pyright: ignore[reportUnnecessaryIsInstance]
            what, hint = f"{tensor!r}: expected a Layout, got {layout!r}", "write Layout.of(shape) and its primitives"
            raise DefinitionError(what, where="create_schedule, layouts", hint=hint)
        check_layout(buffers[tensor], layout)


def _check_symbols(symbols: Sequence[Var], buffers: Mapping[str, Buffer]) -> None:
    for v in symbols:
        if any(v is not other and v.name == other.name for other in symbols):
            what = f"two symbols of different ranges are both called {v.name!r}"
            raise DefinitionError(what, where="create_schedule", hint="make the symbol once, or give one another name")
        if v.name in buffers:
            raise DefinitionError(f"a tensor and a symbol are both called {v.name!r}", where="create_schedule")


def _identifier(text: str) -> str:
    return re.sub(r"^(?=[0-9])|[^A-Za-z0-9_]", "_", text) or "kernel"


def _ordered_inputs(inputs_read: Sequence[Buffer], inputs: Sequence[Tensor | Buffer] | None) -> list[Buffer]:
    """The inputs in the caller's order."""
    if inputs is None:
        return list(inputs_read)
    ordered = [i.plain_buffer if isinstance(i, Tensor) else i for i in inputs]
    for b in inputs_read:
        if b not in ordered:
            raise DefinitionError(f"input {b.name!r} is not listed", where="create_schedule, inputs")
    return ordered


def _used_symbols(params: Iterable[Buffer], stages: Iterable[Computation]) -> tuple[Var, ...]:
    """Every symbol in order of first use."""
    expressions: list[Expr] = [n for p in params for n in p.shape]
    for s in stages:
        expressions += [*s.output.shape, *(a.extent for a in s.reduce_axes), s.body]
    symbols = (v for e in expressions for v in sorted(free_vars(e), key=lambda v: v.name) if isinstance(v, Symbol))
    return tuple(dict.fromkeys(symbols))
