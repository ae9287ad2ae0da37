"""Operands of tasks in files, which the processes read that run candidates."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tilewright.measure.case_operands import write_case
from tilewright.measure.task_cases import case_data, case_sizes
from tilewright.optimize.task import Task


class CaseFiles:
    """A temporary folder of operands, which are written once per task."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="tilewright-")
        self._cases: dict[str, list[dict[str, Any]]] = {}

    def of(self, task: Task) -> list[dict[str, Any]]:
        """What `case_operands.read_case` needs for each case of sizes of a task, the last one of what is timed."""
        if task.hash not in self._cases:
            folder, sizes = Path(self._folder.name) / task.hash, case_sizes(task)
            self._cases[task.hash] = [write_case(folder / str(k), case_data(task, s)) for k, s in enumerate(sizes)]
        return self._cases[task.hash]

    def close(self) -> None:
        """Removes the files."""
        self._folder.cleanup()
