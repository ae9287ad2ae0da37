"""Limits of the states of a sketch: partial sums that a core's own cache and a thread's stack hold."""

from dataclasses import replace

import numpy as np
import pytest
from tests.tile.problems import two_inputs

from tilewright.loops.private_memory import MAX_STACK_BYTES
from tilewright.machine.shipped import machine_named, shipped_machines
from tilewright.optimize.construct.search_space import SearchSpace
from tilewright.optimize.construct.state_costs import MAX_PACKED_SUM_BYTES, PARTIAL_SUM_FRACTION, max_partial_sum_bytes
from tilewright.tile.program import Sketch

ROWS, COLUMNS, TERMS = 32, 4096, 4096

PROBLEM = two_inputs(ROWS, COLUMNS, TERMS)
IN_PLACE = Sketch(1, 16, (1, 0), 2)
PACKED = replace(IN_PLACE, packed=((1, 1),))


def are_lowerable(machine: str, columns: list[int], k_block: int, sketch: Sketch = IN_PLACE) -> list[bool]:
    """Of L1 tiles of 32 rows and so many columns."""
    sizes = np.array([[[8, 32, 1], [ROWS, n, k_block], [ROWS, n, TERMS]] for n in columns])
    space = SearchSpace.of(PROBLEM, sketch, machine_named(machine))
    return space.are_lowerable(sizes).tolist()


@pytest.mark.parametrize(("machine", "kib"), [("haswell", 64), ("zen3", 128), ("zen5", 256), ("sapphire-rapids", 256)])
def test_partial_sums_take_a_share_of_l2(machine: str, kib: int) -> None:
    assert max_partial_sum_bytes(PROBLEM, IN_PLACE, machine_named(machine)) == kib << 10
    # 32 rows of 512 columns are 64 KiB
    columns = [512 * kib // 64, 1024 * kib // 64]
    assert are_lowerable(machine, columns, 64) == [True, False]
    assert are_lowerable(machine, columns, TERMS) == [True, True]


@pytest.mark.parametrize("machine", ["haswell", "zen5"])
def test_partial_sums_take_less_where_all_is_packed(machine: str) -> None:
    assert max_partial_sum_bytes(PROBLEM, PACKED, machine_named(machine)) == MAX_PACKED_SUM_BYTES
    assert are_lowerable(machine, [512, 1024], 64, PACKED) == [True, False]


def test_partial_sums_stay_on_the_stack_and_leave_room_in_the_cache() -> None:
    for machine in shipped_machines().values():
        if machine.gpu is None:
            most = max_partial_sum_bytes(PROBLEM, IN_PLACE, machine)
            assert most <= MAX_STACK_BYTES
            assert most <= max(PARTIAL_SUM_FRACTION * max(x.share for x in machine.levels[:2]), MAX_PACKED_SUM_BYTES)


@pytest.mark.parametrize(("mib", "sharing", "kib"), [(4, 2, 256), (1, 2, 128), (1, 8, 64)])
def test_cores_that_share_l2_have_a_part_of_it_each(mib: int, sharing: int, kib: int) -> None:
    machine = machine_named("x86-64-v4")
    l1, l2, *others = machine.levels
    shared = replace(machine, levels=(l1, replace(l2, bytes=mib << 20, shared_by=sharing), *others))
    assert max_partial_sum_bytes(PROBLEM, IN_PLACE, shared) == kib << 10
    assert max_partial_sum_bytes(PROBLEM, PACKED, shared) == MAX_PACKED_SUM_BYTES
