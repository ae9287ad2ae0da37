"""Buffer locations: which memory of a native call holds a buffer.

The memory planner assigns them (`graph.memory_plan`); generated code turns them into pointers (`codegen.emit_segment`).
"""

from dataclasses import dataclass, field

from tilewright.expr.nodes import Expr


@dataclass(frozen=True, slots=True)
class InputLocation:
    """Memory of the call's input `index`, `offset` bytes from its start."""

    index: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class OutputLocation:
    """Memory of the call's output `index`, which the caller provides, `offset` bytes from its start."""

    index: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class ConstantLocation:
    """Memory of the constant `name`: of a constant buffer in a memory plan, of a weight in a native segment."""

    name: str


@dataclass(frozen=True, slots=True)
class WorkspaceLocation:
    """Memory of the workspace.

    Attributes:
        offset: bytes from its start, an int64 expression.
        slot: index of the memory plan's slot, None where nothing planned it.
    """

    offset: Expr
    slot: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class PointerLocation:
    """Memory whose address native code keeps in a variable: a carried value or a slice in an iteration of a loop.

    Attributes:
        name: of the variable, unique within a native segment.
    """

    name: str


BufferLocation = InputLocation | OutputLocation | ConstantLocation | WorkspaceLocation | PointerLocation
