"""CPU features: the microarchitecture levels of the x86-64 psABI, and the features of the host.

Names are LLVM's ("avx2", "sse4.1"). Only features that generated code may use appear here, so that hosts which differ
in others share one target and produce the same code.
"""

import platform
from functools import lru_cache
from pathlib import Path

from tilewright.feature_detection import detect_features

X86_LEVELS: dict[str, tuple[str, ...]] = {
    "x86-64": ("cmov", "cx8", "fxsr", "mmx", "sse", "sse2"),
    "x86-64-v2": ("crc32", "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3"),
    "x86-64-v3": ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"),
    "x86-64-v4": ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"),
}
"""Features that each level adds to the previous one (x86-64 psABI, table "Micro-Architecture Levels")."""

AARCH64_FEATURES: tuple[str, ...] = ("fp-armv8", "neon")

X86_REQUIRES: dict[str, tuple[str, ...]] = {
    "avx": ("sse4.2",),
    "avx2": ("avx",),
    "fma": ("avx",),
    "f16c": ("avx",),
    "avx512f": ("avx2", "fma", "f16c"),
    "avx512bw": ("avx512f",),
    "avx512cd": ("avx512f",),
    "avx512dq": ("avx512f",),
    "avx512vl": ("avx512f",),
    "sse4.2": ("sse4.1",),
    "sse4.1": ("ssse3",),
    "ssse3": ("sse3",),
    "sse3": ("sse2",),
}
"""Prerequisites of vector features; LLVM enables them implicitly, so the host must have them too."""

_LLVM_NAMES = {
    "abm": "lzcnt",
    "bmi1": "bmi",
    "lahf_lm": "sahf",
    "pni": "sse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "asimd": "neon",
    "fp": "fp-armv8",
}


def host_arch() -> str:
    """The architecture of this machine, "x86_64" or "aarch64"; others by the system's name."""
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def level_features(level: str) -> tuple[str, ...]:
    """All features of an x86-64 level, those of the lower levels included, sorted."""
    names: list[str] = []
    for name, added in X86_LEVELS.items():
        names += added
        if name == level:
            break
    return tuple(sorted(names))


def with_prerequisites(features: frozenset[str]) -> frozenset[str]:
    """The features and their prerequisites, transitively."""
    closure = set(features)
    queue = list(features)
    while queue:
        for name in X86_REQUIRES.get(queue.pop(), ()):
            if name not in closure:
                closure.add(name)
                queue.append(name)
    return frozenset(closure)


def features_from_cpuinfo(text: str) -> frozenset[str]:
    """LLVM's names of the flags in the text of Linux' /proc/cpuinfo; empty if it has no line of flags."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            words = value.split()
            # the kernel has no flag of its own for crc32; sse4.2 implies it
            crc32 = ["crc32"] if "sse4_2" in words else []
            return frozenset([_LLVM_NAMES.get(word, word) for word in words] + crc32)
    return frozenset()


@lru_cache(maxsize=1)
def host_features() -> frozenset[str]:
    """Features of the CPU that runs this process: those that LLVM detects, else those of /proc/cpuinfo."""
    try:
        return detect_features()
    except RuntimeError:
        cpuinfo = Path("/proc/cpuinfo")
        return features_from_cpuinfo(cpuinfo.read_text()) if cpuinfo.exists() else frozenset()
