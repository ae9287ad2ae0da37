"""Recorded programs of other models as sources of a tuning."""

import numpy as np
from tests.measure.records.examples import GENERATOR, MACHINE, OTHER_MACHINE, small_task, split_by, timing
from tests.optimize.reuse.reuse_tasks import convolution_of, lowered, product_of, random_programs
from tests.optimize.search_tasks import MACHINE as TEST_MACHINE

from tilewright.driver.tune.recorded_sources import recorded_sources
from tilewright.errors import ScheduleError
from tilewright.measure.records.record import Record
from tilewright.measure.records.store import open_store
from tilewright.optimize.reuse.program_features import features_of
from tilewright.optimize.reuse.reusable_task import ReusableTask
from tilewright.tile.program import TileProgram


def _legal_program(task: ReusableTask) -> TileProgram:
    for program in random_programs(task, 20, np.random.default_rng()):
        try:
            lowered(task, program)
        except ScheduleError:
            continue
        return program
    raise AssertionError("no program can be lowered")


def _choice(task: ReusableTask, program: TileProgram, machine: str) -> Record:
    trace = lowered(task, program).trace
    return Record(task.task, (trace,), timing(1e5), "ansor", machine, GENERATOR, is_choice=True)


def test_choices_for_operators_of_the_same_kind_are_sources_whatever_the_machine() -> None:
    target, source, other_kind = product_of(24, 48, 40), product_of(48, 96, 80), convolution_of(6, 16, 14)
    incomparable = product_of(12, 96, 40)
    program = _legal_program(source)
    with open_store(None) as store:
        store.add([
            _choice(source, _legal_program(source), MACHINE), _choice(source, program, OTHER_MACHINE),
            _choice(other_kind, _legal_program(other_kind), MACHINE),
            _choice(incomparable, _legal_program(incomparable), MACHINE),
            _choice(target, _legal_program(target), MACHINE),
            Record(small_task(), (split_by(8),), timing(1e3), "ansor", MACHINE, GENERATOR, is_choice=True),
        ])  # fmt: skip
        (recorded,) = recorded_sources(store, TEST_MACHINE, [target.vector])
        assert recorded.vector == source.vector
        assert features_of(recorded.source.program) == features_of(program)
        assert recorded.label == f"record {source.task.hash[:8]} of haswell, 4 cores"
        assert recorded_sources(store, TEST_MACHINE, []) == []


def test_programs_that_were_only_timed_are_no_sources() -> None:
    target, source = product_of(24, 48, 40), product_of(48, 96, 80)
    record = _choice(source, _legal_program(source), MACHINE)
    with open_store(None) as store:
        store.add([Record(record.task, record.traces, record.result, "ansor", MACHINE, GENERATOR)])
        assert recorded_sources(store, TEST_MACHINE, [target.vector]) == []
