"""A step tree as data: the steps of a model that one native function executes, control flow and all.

A segment needs its sizes before it runs. A step tree is around segments: it binds the data-dependent sizes, allocates
the memory of values, runs one branch or the next iteration, and calls segments in between. `emit_step_tree` emits the
function; the driver makes the tree from the artifact's steps (`runtime.manifest`), which mean the same to the runtime.
Code generation is below the runtime and does not know those: a tree has addresses by index where they have names of
weights, as a `Segment` does.
"""

from collections.abc import Iterator
from dataclasses import dataclass

Dim = int | str | None
"""A size, the name of a symbol, or None where it is not declared."""


@dataclass(frozen=True, slots=True)
class TreeValue:
    """A named value.

    Attributes:
        name: unique in its block.
        bytes: of an element.
        dims: declared sizes.
    """

    name: str
    bytes: int
    dims: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class TreeSymbol:
    """A symbol with its inclusive range; `hi` None means unbounded."""

    name: str
    lo: int
    hi: int | None


@dataclass(frozen=True, slots=True)
class SegmentStep:
    """A call of a segment.

    Attributes:
        prefix: of its functions.
        weights: index of its array of weights in the tree's addresses.
        inputs: values that it reads, in order.
        outputs: values that it writes, in order; only literal sizes of theirs are used.
        symbols: whose sizes it gets, in order.
    """

    prefix: str
    weights: int
    inputs: tuple[TreeValue, ...]
    outputs: tuple[TreeValue, ...]
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BindStep:
    """Symbols get the elements at `positions` of an int64 tensor."""

    symbols: tuple[str, ...]
    positions: tuple[int, ...]
    inputs: tuple[TreeValue, ...]
    outputs: tuple[TreeValue, ...] = ()


@dataclass(frozen=True, slots=True)
class TreeBlock:
    """Steps over values of their own.

    Attributes:
        inputs: parameters, then captured values.
        captures: names of the captured values outside.
        constants: values at an index of the tree's addresses.
        symbols: its own, bound by inputs and by steps.
        steps: in order of execution.
        dead: per step, the values that nothing reads after it.
        outputs: names of the results.
    """

    inputs: tuple[TreeValue, ...]
    captures: tuple[str, ...]
    constants: tuple[tuple[TreeValue, int], ...]
    symbols: tuple[TreeSymbol, ...]
    steps: "tuple[TreeStep, ...]"
    dead: tuple[tuple[str, ...], ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BranchStep:
    """One of two blocks, by a bool."""

    condition: str
    then_block: TreeBlock
    else_block: TreeBlock
    inputs: tuple[TreeValue, ...]
    outputs: tuple[TreeValue, ...]

    @property
    def blocks(self) -> tuple[TreeBlock, ...]:
        """The branches."""
        return self.then_block, self.else_block


@dataclass(frozen=True, slots=True)
class RepeatStep:
    """A loop, whose block takes the number of the iteration, the condition, the carried values and captured ones, and
    returns the condition unless the loop is counted, the carried values, and those that are stacked.

    Attributes:
        number: of the loop among those of the tree.
        trip_count: name of the number of iterations; None without a limit.
        condition: name of the bool that says whether there is a first iteration; None where there is.
        initial: names of the first carried values.
        is_counted: whether the block computes no condition.
        body: the block.
        inputs: all values read.
        outputs: the carried values and the stacked ones.
    """

    number: int
    trip_count: str | None
    condition: str | None
    initial: tuple[str, ...]
    is_counted: bool
    body: TreeBlock
    inputs: tuple[TreeValue, ...]
    outputs: tuple[TreeValue, ...]

    @property
    def blocks(self) -> tuple[TreeBlock, ...]:
        """The body."""
        return (self.body,)


TreeStep = SegmentStep | BindStep | BranchStep | RepeatStep


@dataclass(frozen=True, slots=True)
class StepTree:
    """The steps of a model.

    Attributes:
        name: of the function, which has the parameters of a segment's main function (`machine.tree_call`).
        symbols: names of those whose sizes the caller passes, in order.
        block: the steps; its inputs and outputs are the model's.
    """

    name: str
    symbols: tuple[str, ...]
    block: TreeBlock


def all_blocks(block: TreeBlock) -> Iterator[TreeBlock]:
    """A block, followed by those inside it."""
    yield block
    for step in block.steps:
        if isinstance(step, BranchStep | RepeatStep):
            for own in step.blocks:
                yield from all_blocks(own)
