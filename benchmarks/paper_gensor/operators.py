"""The operators of the experiments: kernels of one-operator models, by kind."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from benchmarks.operators.cases import Case, all_cases
from benchmarks.operators.peers import iteration_count
from tilewright.driver.compile import make_compilation
from tilewright.driver.options import CompileOptions
from tilewright.machine import Target
from tilewright.optimize.construct.optimizer import problem_for
from tilewright.optimize.construct.rowwise_programs import rowwise_problem
from tilewright.optimize.task import Task

KINDS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("gemm_m512_k512_n512", "gemm_m37_k768_n2304", "gemm_m512_k512_n512_tab"),
    "unbalanced": ("gemm_m4096_k1024_n4",),
    "gemv": ("gemm_m4096_k4096_n1", "gemm_m1_k768_n3072"),
    "conv": ("conv_1x64x56x56_o64_k3_s1", "conv_1x256x14x14_o256_k3_s1", "conv_1x64x56x56_o256_k1_s1",
             "conv_1x128x56x56_o128_k3_s2", "conv_1x3x224x224_o64_k7_s2"),
    "depthwise": ("dw_1x144x56x56_o144_k3_s1", "dw_1x192x28x28_o192_k3_s2"),
    "pool": ("maxpool_1x64x112x112_k3_s2", "averagepool_1x512x28x28_k3_s1"),
    "reduction": ("reducesum_rows_1024x1024", "reducesum_columns_1024x1024"),
    "row chain": ("softmax_12x128x128", "layernorm_128x768"),
    "transpose": ("transpose_1024x1024",),
}  # fmt: skip
"""Twenty operators, named as in `benchmarks.operators.cases`."""

SCALING_GEMMS = ("gemm_m64_k64_n64", "gemm_m512_k512_n512", "gemm_m1024_k1024_n1024", "gemm_m2048_k2048_n2048",
           "gemm_m8192_k8192_n8192")  # fmt: skip
"""Products whose construction is timed by size (Gensor, Fig. 8)."""

UNBALANCED_GEMMS = ("gemm_m65536_k4_n1024", "gemm_m32768_k64_n2048", "gemm_m16384_k32_n1024")
"""The unbalanced products of Gensor, Table V, as M, K, N."""

REDUCED = ("gemm_m512_k512_n512", "gemm_m37_k768_n2304", "gemm_m1_k768_n3072", "conv_1x64x56x56_o64_k3_s1",
           "conv_1x64x56x56_o256_k1_s1", "dw_1x144x56x56_o144_k3_s1", "averagepool_1x512x28x28_k3_s1",
           "reducesum_rows_1024x1024")  # fmt: skip
"""One or two of every kind, for a quick look."""


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """One operator: its case and the kernel that is constructed."""

    case: Case
    kind: str
    task: Task


def operator_names() -> tuple[str, ...]:
    """All twenty."""
    return tuple(name for group in KINDS.values() for name in group)


@lru_cache(maxsize=32)
def operator(name: str) -> Operator:
    """An operator by name.

    Raises:
        ValueError: there is no such operator, or none of its kernels can be constructed.
    """
    case = next((c for c in all_cases() if c.name == name), None)
    if case is None:
        raise ValueError(f"there is no operator {name!r}; use one of {', '.join(operator_names())}")
    return operator_of(case)


def operator_of(case: Case) -> Operator:
    """The operator of a case: its largest kernel that can be constructed; convolutions as they are defined.

    Raises:
        ValueError: there is none.
    """
    kind = next((k for k, group in KINDS.items() if case.name in group), case.group)
    candidates: list[tuple[int, Task]] = []
    for kernel in make_compilation(case.model(), CompileOptions(exact=True)).kernels:
        # the first parameter is fed, the last one is the result, what lies between are weights
        task = Task(kernel.origin, frozenset(b.name for b in kernel.origin.inputs[1:]), Target.host(), kernel.fusion)
        if problem_for(task) is not None or rowwise_problem(task) is not None:
            candidates.append((iteration_count(task.func), task))
    if not candidates:
        raise ValueError(f"no kernel of {case.name!r} can be constructed")
    return Operator(case, kind, max(candidates, key=lambda f: f[0])[1])
