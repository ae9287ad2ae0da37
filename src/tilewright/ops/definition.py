"""The interface of operator definitions: operands, attributes, emitted stages, and the registry.

A definition is one function. It receives a `Definition`, emits computations and views through it (and calls of
routines, `routine_call.py`) and returns the result(s). Output shapes are those of the emitted stages, and elements of
small tensors (shape arithmetic: Shape, Gather, Concat, ...) are derived from the same expressions, so no operator needs
a separate shape rule.

    @operator("Relu")
    def relu(d: Definition) -> OpValue:
        x = d.input(0)
        return d.compute(x.shape, lambda *i: maximum(x[i], 0))
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tilewright.errors import ShapeError, UnsupportedError, pluralize
from tilewright.expr.algebra.bounds import interval
from tilewright.expr.algebra.expression_order import order_key
from tilewright.expr.algebra.prover import can_prove
from tilewright.expr.computation import Axis, Computation, Reducer, Stage, View
from tilewright.expr.dtype import DType
from tilewright.expr.nodes import Buffer, Const, Expr, Load, Var, as_expr
from tilewright.expr.traversal import free_vars, is_one
from tilewright.ops.attributes import TrackedAttributes, is_default
from tilewright.ops.shape_arithmetic import symbolic_elements
from tilewright.routine.stages import RoutineStage, SizeMaker, SizesStage, no_sizes

Emitted = Stage | RoutineStage | SizesStage
KnownElements = tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class OpValue:
    """An operand or result of an operator, inside its definition.

    Attributes:
        buffer: its storage.
        known_elements: its elements in row-major order, as expressions over the symbols, where known at compile time
            (constants and shape arithmetic); None otherwise.
    """

    buffer: Buffer
    known_elements: KnownElements | None = None

    @property
    def shape(self) -> tuple[Expr, ...]:
        """Sizes, as int64 expressions."""
        return self.buffer.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.buffer.dtype

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.buffer.shape)

    def __getitem__(self, indices: "tuple[Expr | int, ...] | Expr | int") -> Expr:
        return self.buffer[indices]


@dataclass(slots=True)
class Definition:
    """The context of one operator application: its operands and attributes, and the stages emitted so far.

    Attributes:
        op_type: operator name.
        label: the user's node ("conv1 (Conv)"), for errors.
        opset: version of the operator set; definitions branch on it where versions differ.
        operands: inputs; None for an omitted optional input.
        attributes: by name. An attribute that the definition never reads and whose value is not the default sends the
            node to the reference evaluator (see `operator`).
        prefix: prefix of the names of emitted buffers.
        num_outputs: number of outputs of the node, without unused optional ones (`graph/passes/unused_outputs.py`).
        data_dependent_symbols: names of symbols for data-dependent sizes, where the reference evaluator knows how this
            node broadcasts one that turns out to be 1.
        has_finite_elements: whether all elements of a buffer are known to be finite.
        make_size: makes the symbol of a data-dependent size.
        names_made: number of buffers that have a name so far.
        tracked_attributes: `attributes`, with a record of those read so far.
    """

    op_type: str
    label: str
    opset: int
    operands: Sequence[OpValue | None]
    attributes: Mapping[str, Any]
    prefix: str
    num_outputs: int = 1
    data_dependent_symbols: Set[str] = frozenset()
    has_finite_elements: Callable[[Buffer], bool] = lambda _: False
    make_size: SizeMaker = no_sizes
    stages: list[Emitted] = field(default_factory=list[Emitted])
    constraints: list[tuple[Expr, str]] = field(default_factory=list[tuple[Expr, str]])
    derived_elements: dict[Buffer, KnownElements] = field(default_factory=dict[Buffer, KnownElements])
    names_made: int = 0
    tracked_attributes: TrackedAttributes = field(init=False)

    def __post_init__(self) -> None:
        self.tracked_attributes = TrackedAttributes(self.attributes)
        self.attributes = self.tracked_attributes

    # Inputs and attributes

    def optional(self, position: int) -> OpValue | None:
        """Input number `position`, or None where it is omitted."""
        return self.operands[position] if position < len(self.operands) else None

    def input(self, position: int) -> OpValue:
        """Input number `position`.

        Raises:
            ShapeError: the node does not have it.
        """
        operand = self.optional(position)
        if operand is None:
            raise ShapeError(f"input {position} is missing", where=f"node {self.label}")
        return operand

    def known_elements(self, position: int) -> KnownElements:
        """The elements of input `position`, which must be known at compile time.

        Raises:
            UnsupportedError: they depend on data, so the node runs on the reference evaluator.
        """
        operand = self.input(position)
        if operand.known_elements is None:
            raise self.unsupported(f"input {position} depends on data")
        return operand.known_elements

    def is_finite(self, x: OpValue) -> bool:
        """Whether no element of an operand can be infinite or NaN."""
        return self.has_finite_elements(x.buffer)

    def known_ints(self, position: int) -> tuple[int, ...]:
        """The elements of input `position`, which must be literals.

        Raises:
            UnsupportedError: an element depends on data or on a symbol.
        """
        values = self.known_elements(position)
        if not all(isinstance(v, Const) for v in values):
            raise self.unsupported(f"input {position} is not constant")
        return tuple(int(v.value) for v in values if isinstance(v, Const))

    def attr_int(self, name: str, default: int) -> int:
        """An integer attribute."""
        return int(self.attributes.get(name, default))

    def attr_float(self, name: str, default: float) -> float:
        """A float attribute."""
        return float(self.attributes.get(name, default))

    def attr_ints(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...] | None:
        """A list of integers, or the default."""
        value = self.attributes.get(name, default)
        return None if value is None else tuple(int(v) for v in value)

    def attr_str(self, name: str, default: str) -> str:
        """A string attribute."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def axis(self, value: int, rank: int) -> int:
        """An axis counted from the front.

        Raises:
            ShapeError: it is out of range.
        """
        if not -rank <= value < rank:
            what = f"axis {value} is out of range for {pluralize(rank, 'dimension')}"
            raise ShapeError(what, where=f"node {self.label}")
        return value % rank if rank else 0

    # Results

    def compute(
        self,
        shape: Sequence[Expr | int],
        body: Callable[..., Expr],
        dtype: DType | None = None,
    ) -> OpValue:
        """Emits `out[i...] = body(i...)`, or a view where the body loads the same element of another tensor.

        Args:
            shape: of the output.
            body: takes one int64 index per dimension and returns the value.
            dtype: of the output, which must be the body's; default: the body's.
        """
        axes = self._axes(shape, "i")
        value = body(*(a.var for a in axes))
        if isinstance(value, Load) and _is_identity_copy(axes, value):
            return self.view(OpValue(value.buffer, self._all_known_elements().get(value.buffer)), shape)
        return self._emit(axes, (), value, None, dtype)

    def reduce(
        self,
        shape: Sequence[Expr | int],
        extents: Sequence[Expr | int],
        body: Callable[[tuple[Expr, ...], tuple[Expr, ...]], Expr],
        reducer: Reducer,
    ) -> OpValue:
        """Emits `out[i...] = reducer over r... of body(i, r)`; `extents` are the sizes of the reduction axes.

        Without reduction axes it is `compute`.
        """
        axes, inner = self._axes(shape, "i"), self._axes(extents, "r")
        value = body(tuple(a.var for a in axes), tuple(a.var for a in inner))
        return self._emit(axes, inner, value, reducer if inner else None, None)

    def view(self, source: OpValue, shape: Sequence[Expr | int]) -> OpValue:
        """The same elements with another shape; the caller guarantees equal numbers of elements."""
        sizes = tuple(as_expr(s) for s in shape)
        if sizes == source.shape:
            return source
        output = Buffer(self.make_name(), sizes, source.dtype)
        self.stages.append(View(output, source.buffer, self.label))
        if source.known_elements is not None:
            self.derived_elements[output] = source.known_elements
        return OpValue(output, source.known_elements)

    def require(self, condition: Expr, message: str) -> None:
        """Requires a condition for this node: decided at compile time, or checked on every call.

        Raises:
            ShapeError: it is false.
        """
        if isinstance(condition, Const):
            if not condition.value:
                raise ShapeError(message, where=f"node {self.label}")
            return
        if not can_prove(condition):
            self.constraints.append((condition, f"node {self.label}: {message}"))

    def require_equal(self, a: Expr, b: Expr, what: str) -> Expr:
        """Requires that two sizes are equal and returns the simpler of them."""
        self.require(a.equals(b), f"{what}: sizes {a} and {b} differ")
        return simplest_size(a, b)

    def refuse_unit_size(self, size: Expr, other: Expr, what: str) -> None:
        """Sends the node to the reference evaluator where a data-dependent size may be 1 and then broadcast to `other`.

        Declared dimensions are assumed equal to `other` instead.

        Raises:
            UnsupportedError: the size may be 1.
        """
        if all(v.name not in self.data_dependent_symbols for v in free_vars(size)) or can_prove(size.equals(other)):
            return
        low, high = interval(size)
        if (low is None or low <= 1) and (high is None or high >= 1):
            raise self.unsupported(f"{what}: data-dependent size {size} may be 1 where the other is {other}")

    def unsupported(self, reason: str) -> UnsupportedError:
        """The error that sends this node to the reference evaluator."""
        return UnsupportedError(reason, where=f"node {self.label}")

    def _all_known_elements(self) -> dict[Buffer, KnownElements]:
        return {
            o.buffer: o.known_elements for o in self.operands if o is not None and o.known_elements is not None
        } | self.derived_elements

    def make_name(self) -> str:
        """A name for the next buffer."""
        self.names_made += 1
        return f"{self.prefix}_{self.names_made - 1}" if self.names_made > 1 else self.prefix

    def _axes(self, shape: Sequence[Expr | int], letter: str) -> tuple[Axis, ...]:
        return tuple(Axis(Var(f"{letter}{k}"), as_expr(n)) for k, n in enumerate(shape))

    def _emit(
        self, axes: tuple[Axis, ...], inner: tuple[Axis, ...], body: Expr, reducer: Reducer | None, dtype: DType | None
    ) -> OpValue:
        if dtype is not None and body.dtype != dtype:
            raise TypeError(f"{self.op_type}: body has type {body.dtype}, expected {dtype}")
        output = Buffer(self.make_name(), tuple(a.extent for a in axes), body.dtype)
        stage = Computation(output, axes, inner, body, reducer, self.label)
        self.stages.append(stage)
        elements = symbolic_elements(stage, self._all_known_elements())
        if elements is not None:
            self.derived_elements[output] = elements
        return OpValue(output, elements)


def _is_identity_copy(axes: Sequence[Axis], element: Load) -> bool:
    """Whether the load copies its buffer in row-major order: apart from unit dimensions, the indices are the axes."""
    outer = [(a.var, a.extent) for a in axes if not is_one(a.extent)]
    inner = [(i, n) for i, n in zip(element.indices, element.buffer.shape, strict=True) if not is_one(n)]
    return len(outer) == len(inner) and all(a is b and m is n for (a, m), (b, n) in zip(outer, inner, strict=True))


def simplest_size(a: Expr, b: Expr) -> Expr:
    """The canonical one of two equal sizes: a literal, else the smaller expression."""
    return min((a, b), key=lambda e: (not isinstance(e, Const), e.tree_size, order_key(e)))


OperatorFunction = Callable[[Definition], "OpValue | tuple[OpValue, ...]"]

AnyOperatorFunction = TypeVar("AnyOperatorFunction", bound=OperatorFunction)

OPERATORS: dict[tuple[str, str], OperatorFunction] = {}
"""Definitions by (domain, operator name)."""

IGNORED_ATTRIBUTES: dict[tuple[str, str], frozenset[str]] = {}
"""Attributes that do not affect what a definition computes, by (domain, operator name)."""


def operator(
    *names: str, domain: str = "", ignores: Sequence[str] = ()
) -> Callable[[AnyOperatorFunction], AnyOperatorFunction]:
    """Registers a definition under operator names; it handles every version that it does not reject.

    A node with an attribute that the definition did not read goes to the reference evaluator, unless the value is the
    default, so that attributes of future versions are never ignored silently.

    Args:
        names: operators.
        domain: of the operators.
        ignores: attributes that do not affect the result, or only in cases in which the definition reads them.
    """
    ignored = frozenset(ignores)

    def register(definition: AnyOperatorFunction) -> AnyOperatorFunction:
        def checked(d: Definition) -> "OpValue | tuple[OpValue, ...]":
            result = definition(d)
            _refuse_unread(d, domain, ignored)
            return result

        for name in names:
            OPERATORS[domain, name] = checked
            IGNORED_ATTRIBUTES[domain, name] = ignored
        return definition

    return register


def _refuse_unread(d: Definition, domain: str, ignored: frozenset[str]) -> None:
    for name, value in d.tracked_attributes.unread().items():
        # Names with two leading underscores are private to exporters.
        if name in ignored or name.startswith("__") or is_default(domain, d.op_type, d.opset, name, value):
            continue
        raise d.unsupported(f"attribute {name}={value} is not supported")


def broadcast_shape(d: Definition, *shapes: Sequence[Expr]) -> tuple[Expr, ...]:
    """The shape of NumPy broadcasting; different symbolic sizes are required to be equal at run time.

    Raises:
        ShapeError: two sizes can't be broadcast.
        UnsupportedError: a data-dependent size may be 1.
    """
    rank = max(len(s) for s in shapes)
    result: list[Expr] = []
    for position in range(rank):
        size: Expr = as_expr(1)
        for shape in shapes:
            k = position - (rank - len(shape))
            if k < 0 or is_one(shape[k]) or shape[k] is size:
                continue
            if is_one(size):
                size = shape[k]
            else:
                what = f"broadcast along dimension {position}"
                d.refuse_unit_size(size, shape[k], what)
                d.refuse_unit_size(shape[k], size, what)
                size = d.require_equal(size, shape[k], what)
        result.append(size)
    return tuple(result)


def is_zero(e: Expr) -> bool:
    """Whether an expression is the literal 0."""
    return isinstance(e, Const) and e.value == 0


def is_known_zero(x: OpValue) -> bool:
    """Whether all elements are known at compile time to be 0."""
    return x.known_elements is not None and all(is_zero(v) for v in x.known_elements)


def broadcast_element(x: OpValue, index: Sequence[Expr]) -> Expr:
    """The element of `x` that is broadcast to `index` of a shape of the same or a higher rank.

    A single element known at compile time is returned as a value, without a load.
    """
    if x.known_elements is not None and len(x.known_elements) == 1 and all(is_one(n) for n in x.shape):
        return x.known_elements[0]
    tail = index[len(index) - x.rank :]
    return x[tuple(as_expr(0) if is_one(n) else i for i, n in zip(tail, x.shape, strict=True))]
