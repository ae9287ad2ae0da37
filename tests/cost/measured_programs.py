"""Programs whose times were measured, from the recorded results of benchmarks."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

from tests.tile.problems import matrix_product

from tilewright.machine.model import Machine
from tilewright.machine.shipped import machine_named
from tilewright.tile.operand import Operand
from tilewright.tile.problem import Problem, ProblemAxis
from tilewright.tile.program import Sketch, TileProgram

AXIS = re.compile(r"(?P<name>\w+)(?P<flags>[|+]*) \d+: (?P<l2>\d+) > (?P<l1>\d+) > (?P<register>\d+)")


@dataclass(frozen=True)
class MeasuredPrograms:
    """Programs of one operator, the fastest first.

    Attributes:
        reason: why the slower ones are slower.
        source: where the times are recorded.
        machine: the description of the machine that measured them, or of the most similar one.
        microseconds: the measured times.
        programs: what was measured.
    """

    reason: str
    source: str
    machine: Machine
    microseconds: tuple[float, ...]
    programs: tuple[TileProgram, ...]


def column_sums(rows: int, columns: int) -> Problem:
    """y[j] = the sum of x[k, j] over k"""
    axes = (ProblemAxis("j", columns, True, False), ProblemAxis("k", rows, True, True))
    matrix = Operand("x", 4, False, (rows, columns), ((0, 1), (1, 0)), False)
    total = Operand("y", 4, False, (columns,), ((1, 0),), True)
    return Problem("y", "y", axes, (matrix,), (total,), 1, 32, is_plain_sum=True)


def transposition(rows: int, columns: int) -> Problem:
    """y[i, j] = x[j, i], where y has so many rows"""
    axes = (ProblemAxis("i", rows, True, False), ProblemAxis("j", columns, True, False))
    read = Operand("x", 4, False, (columns, rows), ((0, 1), (1, 0)), False)
    written = Operand("y", 4, False, (rows, columns), ((1, 0), (0, 1)), True)
    return Problem("y", "y", axes, (read, written), (), 1, 32)


def product_of_inputs(rows: int, columns: int, terms: int) -> Problem:
    """A product of two matrices that are both known at run time only."""
    constant = matrix_product(rows, columns, terms)
    a, b = constant.operands
    return replace(constant, operands=(a, replace(b, constant=False)))


OPERATORS = {
    "gemm_m111_k8_n819": matrix_product(111, 819, 8),
    "gemm_m1000_k64_n294": matrix_product(1000, 294, 64),
    "gemm_m32_k300_n340_inputs": product_of_inputs(32, 340, 300),
    "gemm_m197_k142_n44_inputs": product_of_inputs(197, 44, 142),
    "gemm_m19_k316_n1155": matrix_product(19, 1155, 316),
    "gemm_m48_k2166_n1489": matrix_product(48, 1489, 2166),
    "gemm_m512_k512_n512": matrix_product(512, 512, 512),
    "reducesum_columns_1024x1024": column_sums(1024, 1024),
    "transpose_1024x1024": transposition(1024, 1024),
    "transpose_nhwc_256x56x56": transposition(3136, 256),
}
"""The problems, by the names of operators in benchmarks."""


def program_of(problem: Problem, text: str, lanes: int) -> TileProgram:
    """The program of a text such as `v_i0 512: 8 > 8 > 8; v_i1| 512: 64 > 64 > 16; order v_i0 v_i1; packed a1`: extent
    and tiles of every axis, from L2 inwards, `|` at the lane axis. The operands of a product are packed along its rows
    (a0) or columns (a1)."""
    axes, _, rest = text.partition("; order ")
    matches = [match for part in axes.split("; ") if (match := AXIS.fullmatch(part))]
    assert len(matches) == len(problem.axes), text
    order, _, packed = rest.partition("; packed ")
    names = [match["name"] for match in matches]
    lane = next(k for k, match in enumerate(matches) if "|" in match["flags"])
    sketch = Sketch(
        lane,
        lanes,
        tuple(names.index(name) for name in order.split()),
        next(iter(problem.reduce), None),
        tuple((int(k), int(k)) for k in re.findall(r"a(\d)", packed)),
    )
    return TileProgram(
        problem, sketch, tuple(tuple(int(m[level]) for m in matches) for level in ("register", "l1", "l2"))
    )


def with_own_l3(machine: Machine, size: int) -> Machine:
    """A virtual machine whose cores share the L3 of a processor with none but each other."""
    levels = [replace(x, bytes=size, shared_by=machine.cores) if x.name == "L3" else x for x in machine.levels]
    return replace(machine, levels=tuple(levels))


def measured_programs() -> list[MeasuredPrograms]:
    """All that `measured_programs.json` holds."""
    result = []
    for entry in json.loads(Path(__file__).with_suffix(".json").read_text()):
        machine = machine_named(entry["machine"]["description"]).with_cores(entry["machine"]["cores"])
        if "l3_bytes" in entry["machine"]:
            machine = with_own_l3(machine, entry["machine"]["l3_bytes"])
        problem, lanes = OPERATORS[entry["operator"]], machine.vector_bits // 32
        programs = tuple(program_of(problem, x["program"], lanes) for x in entry["programs"])
        times = tuple(x["us"] for x in entry["programs"])
        result.append(MeasuredPrograms(entry["reason"], entry["source"], machine, times, programs))
    return result
