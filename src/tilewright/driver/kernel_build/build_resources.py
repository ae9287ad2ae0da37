"""What a compilation may use: processes, the cache, and records of programs.

This module imports no part of the compiler, so a session that loads a compiled artifact can name the options.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.driver.kernel_build.code_cache import CodeCache, code_cache
from tilewright.driver.kernel_build.record_source import RecordSource, record_source
from tilewright.errors import OptionError
from tilewright.machine.threads import available_cores

if TYPE_CHECKING:
    from tilewright.measure.started_program import StartedProgram

VARIABLE = "TILEWRIGHT_JOBS"
MAX_JOBS = 256

_COUNT = re.compile("[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class BuildResources:
    """What a compilation may use.

    Attributes:
        jobs: number of processes, the one that compiles included.
        cache: machine code of earlier compilations; None for none.
        with_code: whether to generate the code of kernels at once, not when it is asked for.
        records: programs of kernels; None for none. Those that were measured decide the code; all else here does not.
        started: workers that have been started already, fewer than `jobs`; who uses one takes it out.
    """

    jobs: int = 1
    cache: CodeCache | None = None
    with_code: bool = False
    records: RecordSource | None = None
    started: "list[StartedProgram]" = field(default_factory=list["StartedProgram"], compare=False)


IN_PROCESS = BuildResources()
"""One process without a cache, which generates code when it is asked for."""


def build_resources(
    jobs: int | None = None,
    cache: bool | None = None,
    environ: Mapping[str, str] | None = None,
    records: "str | os.PathLike[str] | bool | None" = None,
    frozen: bool = False,
) -> BuildResources:
    """What a compilation that generates code may use.

    Args:
        jobs: number of processes; None asks TILEWRIGHT_JOBS, then it is one per core that this process may use.
        cache: whether to use the cache; None asks TILEWRIGHT_CACHE, then it is used.
        environ: environment variables, the process's own by default.
        records: a store or an export of records; False for none; None asks TILEWRIGHT_RECORDS, then it is the user's.
        frozen: whether programs and estimates come from records alone.

    Raises:
        OptionError: the argument or a variable has no such value.
    """
    environ = os.environ if environ is None else environ
    text = environ.get(VARIABLE, "").strip()
    if jobs is not None:
        count = _checked_count(jobs, "argument 'jobs'")
    elif text:
        count = _checked_count(int(text) if _COUNT.fullmatch(text) is not None else text, VARIABLE)
    else:
        count = min(available_cores(), MAX_JOBS)
    source = record_source(records, frozen, environ)
    return BuildResources(count, code_cache(cache, environ), with_code=True, records=source)


def _checked_count(jobs: object, where: str) -> int:
    if type(jobs) is not int or not 1 <= jobs <= MAX_JOBS:
        hint = "give a number of processes, or nothing for one per core"
        raise OptionError(f"expected a number within 1..{MAX_JOBS}, got {jobs!r}", where=where, hint=hint)
    return jobs
