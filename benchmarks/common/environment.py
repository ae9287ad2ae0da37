"""Where a result was measured: machine, versions, commit."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("tilewright", "llvmlite", "numpy", "onnx", "onnxruntime", "torch", "transformers")


def describe(command: str) -> dict[str, str]:
    """Return what a reader needs in order to judge or repeat a measurement taken now by `command`."""
    versions = ", ".join(f"{package} {_version(package)}" for package in PACKAGES)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{_processor()}, {os.cpu_count()} logical cores, {platform.system()} {platform.machine()}",
        "versions": f"Python {platform.python_version()}, {versions}",
        "commit": _commit(),
        "command": command,
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "-"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = {flag for line in lines if line.startswith("flags") for flag in line.partition(":")[2].split()}
    vectors = next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), "")
    return " ".join(part for part in (names[0] if names else platform.processor(), vectors) if part)


def _commit() -> str:
    root = Path(__file__).resolve().parents[2]
    try:
        revision, changed = (
            subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=True).stdout.strip()
            for command in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return revision + (" with changes" if changed else "")
