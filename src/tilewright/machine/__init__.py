"""Machines as data: compilation targets, machine descriptions, host detection, number of threads.

The first layer of the package: it depends on no models, expressions or LLVM. Code generation reads `Target`, the
runtime checks a `Target` against the host, and `tilewright doctor` prints `Host`.
"""

from tilewright.machine.host import Cache, Host, host
from tilewright.machine.target import Target
from tilewright.machine.threads import team_size, thread_count

__all__ = ["Cache", "Host", "Target", "host", "team_size", "thread_count"]
