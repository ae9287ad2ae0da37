"""CPU features: the micro-architecture levels of the x86-64 psABI, and what the host offers.

Names are LLVM's ("avx2", "sse4.1"). Only features that generated code may use appear here, so that two hosts
which differ in anything else share one target and produce the same code.
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
"""What each level adds to the one before it (x86-64 psABI, table "Micro-Architecture Levels")."""

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
"""A vector feature and those that it builds on; LLVM turns the latter on by itself, so the host must have them too."""

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
    """The architecture of this machine, "x86_64" or "aarch64" (anything else is returned as the system says it)."""
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
    """The features together with everything that they build on."""
    found = set(features)
    queue = list(features)
    while queue:
        for name in X86_REQUIRES.get(queue.pop(), ()):
            if name not in found:
                found.add(name)
                queue.append(name)
    return frozenset(found)


def features_from_cpuinfo(text: str) -> frozenset[str]:
    """LLVM names of the flags in the text of Linux' /proc/cpuinfo; empty when it has no flags line."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            words = value.split()
            # sse4.2 is the only flag that announces the crc32 instruction; the kernel has no separate name for it
            crc32 = ["crc32"] if "sse4_2" in words else []
            return frozenset([_LLVM_NAMES.get(word, word) for word in words] + crc32)
    return frozenset()


@lru_cache(maxsize=1)
def host_features() -> frozenset[str]:
    """Features of the CPU that runs this process, by LLVM's detection, else by /proc/cpuinfo."""
    try:
        return detect_features()
    except RuntimeError:
        cpuinfo = Path("/proc/cpuinfo")
        return features_from_cpuinfo(cpuinfo.read_text()) if cpuinfo.exists() else frozenset()
