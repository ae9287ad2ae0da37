"""What every candidate of a machine's library must be, an optimizer that takes one of them, and a model of any rows."""

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tilewright.machine.model import Machine
from tilewright.optimize.construct.lower_programs import lower_first_legal
from tilewright.optimize.construct.reduction_sketches import reduction_sketches
from tilewright.optimize.task import Task
from tilewright.optimize.vortex.candidates import candidate_sizes, is_contraction
from tilewright.optimize.vortex.library import Library, library
from tilewright.schedule.schedule import Schedule
from tilewright.tile.problem import Problem, extract_problem
from tilewright.tile.program import L1, L2, REGISTER, Sizes, Sketch, TileProgram


def states_of(task: Task, machine: Machine) -> tuple[Problem, list[tuple[Sketch, Sizes]]] | None:
    """The problem of a contraction and the candidates of all of its sketches; None for other tasks."""
    problem = extract_problem(task.func, task.constants, task.samples)
    if problem is None or not problem.spatial or not is_contraction(problem):
        return None
    # the last ones differ from the first in packing and order only
    sketches = reduction_sketches(problem, task.target, machine)[:4]
    candidates = library(machine, problem.bits)
    return problem, [(x, candidate_sizes(candidates, problem, x, machine)) for x in sketches]


@dataclass(frozen=True)
class NthCandidate:
    """An optimizer that takes one candidate of the library, by a number that is taken modulo their count."""

    machine: Machine
    number: int
    name: str = "nth candidate"

    def optimize(self, task: Task) -> Schedule | None:
        """The schedule of the candidate; None for kernels that are no contractions."""
        states = states_of(task, self.machine)
        if states is None:
            return None
        problem, by_sketch = states
        programs = [(sketch, sizes) for sketch, every in by_sketch for sizes in every]
        if not programs:
            return None
        program = TileProgram.of(problem, *programs[self.number % len(programs)])
        lowered = lower_first_legal([program], task, self.machine)
        assert not lowered.refusals, lowered.refusals
        return lowered.schedule


def is_multiple_of_child(sizes: Sizes) -> np.ndarray:
    """Which tiles of a level are whole multiples of those below [candidate, axis]; a K-block may be any."""
    return (sizes[:, L1] % sizes[:, REGISTER] == 0) & (sizes[:, L2] % sizes[:, REGISTER] == 0)


def window_use(candidates: Library, element_bytes: int) -> np.ndarray:
    """Bytes of every cache buffer: a panel of each operand and the results."""
    rows, columns, terms = candidates.cache_buffers.T
    return (rows * terms + terms * columns + rows * columns) * element_bytes


def dense_model(columns: int, terms: int) -> onnx.ModelProto:
    """Y = relu(X W), rows of X any number."""
    rng = np.random.default_rng(columns)
    weights = numpy_helper.from_array(rng.standard_normal((terms, columns)).astype(np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["p"], name="product"), helper.make_node("Relu", ["p"], ["y"])],
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", terms])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", columns])],
        [weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
