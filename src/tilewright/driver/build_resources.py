"""What a compilation may use, without an effect on the code that it generates: processes, and the cache.

This module imports no part of the compiler, so a session that loads a compiled artifact can name the options.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.driver.code_cache import CodeCache, code_cache
from tilewright.errors import OptionError
from tilewright.machine.threads import available_cores

VARIABLE = "TILEWRIGHT_JOBS"
MAX_JOBS = 256


@dataclass(frozen=True, slots=True)
class BuildResources:
    """What a compilation may use.

    Attributes:
        jobs: number of processes, the one that compiles included.
        cache: machine code of earlier compilations; None for none.
        with_code: whether to generate the code of kernels at once, not when it is asked for.
    """

    jobs: int = 1
    cache: CodeCache | None = None
    with_code: bool = False


IN_PROCESS = BuildResources()
"""One process without a cache, which generates code when it is asked for."""


def build_resources(
    jobs: int | None = None, cache: bool | None = None, environ: Mapping[str, str] | None = None
) -> BuildResources:
    """What a compilation that generates code may use.

    Args:
        jobs: number of processes; None asks TILEWRIGHT_JOBS, then it is one per core that this process may use.
        cache: whether to use the cache; None asks TILEWRIGHT_CACHE, then it is used.
        environ: environment variables, the process's own by default.

    Raises:
        OptionError: the argument or a variable has no such value.
    """
    environ = os.environ if environ is None else environ
    text = environ.get(VARIABLE, "").strip()
    if jobs is not None:
        count = _checked_count(jobs, "argument 'jobs'")
    elif text:
        count = _checked_count(int(text) if text.isascii() and text.isdigit() else text, VARIABLE)
    else:
        count = min(available_cores(), MAX_JOBS)
    return BuildResources(count, code_cache(cache, environ), with_code=True)


def _checked_count(jobs: object, where: str) -> int:
    if type(jobs) is not int or not 1 <= jobs <= MAX_JOBS:
        hint = "give a number of processes, or nothing for one per core"
        raise OptionError(f"expected a number within 1..{MAX_JOBS}, got {jobs!r}", where=where, hint=hint)
    return jobs
