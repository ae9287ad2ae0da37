"""Load of the machine by other processes, and its clock governor."""

import os
from dataclasses import dataclass
from pathlib import Path

_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


@dataclass(frozen=True, slots=True)
class SystemLoad:
    """CPU seconds at one moment: of the whole machine (stolen time included), of this process, and elapsed seconds."""

    machine: float
    own: float
    elapsed: float

    @staticmethod
    def now(helpers: float = 0.0) -> "SystemLoad":
        """Reads the counters; without /proc the machine's are zero.

        Args:
            helpers: CPU seconds of processes that count as part of this one.
        """
        times = os.times()
        stat = Path("/proc/stat")
        fields = stat.read_text().splitlines()[0].split()[1:] if stat.exists() else []
        ticks = [int(field) for field in fields]
        # user, nice, system, (idle, iowait skipped,) irq, softirq, steal; guest time is part of user time.
        busy = sum(ticks[0:3]) + sum(ticks[5:8]) if len(ticks) >= 8 else 0
        return SystemLoad(busy / os.sysconf("SC_CLK_TCK"), times.user + times.system + helpers, times.elapsed)

    def others_since(self, helpers: float = 0.0) -> float:
        """The share of all cores, 0 to 1, that other processes and the hypervisor took since this reading."""
        now = SystemLoad.now(helpers)
        span = (now.elapsed - self.elapsed) * (os.cpu_count() or 1)
        taken = (now.machine - self.machine) - (now.own - self.own)
        return max(0.0, taken / span) if span > 0 else 0.0


def governor() -> str | None:
    """The clock governor of the first core ("performance", "schedutil"); None if the system does not report it."""
    try:
        return _GOVERNOR.read_text().strip() or None
    except OSError:
        return None
