"""Python code of a test in a process of its own."""

import os
import resource
import subprocess
import sys
import textwrap


def python(script: str, without: tuple[str, ...] = (), **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a script and returns the finished process; warnings are errors. `without` are variables that it does not
    inherit."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    inherited = {name: value for name, value in os.environ.items() if name not in without}
    return subprocess.run(command, env={**inherited, **env}, cwd=folder, capture_output=True, text=True, timeout=120)


def page_faults() -> int:
    """Page faults of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
