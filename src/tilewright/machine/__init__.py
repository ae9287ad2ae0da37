"""Machines as data: compilation targets, detection of the host, and the number of threads to use.

First layer of the package: it knows nothing of models, expressions or LLVM IR. Code generation reads `Target`,
the runtime checks a `Target` against the host, and `tilewright doctor` prints `Host`.
"""

from tilewright.machine.host import Cache, Host, host
from tilewright.machine.target import Target
from tilewright.machine.threads import team_size, thread_count

__all__ = ["Cache", "Host", "Target", "host", "team_size", "thread_count"]
