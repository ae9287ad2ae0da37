"""Targets: names, features, registers, and the check against this machine."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import TargetError
from tilewright.machine import Target, cpu_features, host
from tilewright.machine.cpu_features import X86_LEVELS, features_from_cpuinfo, level_features, with_prerequisites
from tilewright.machine.target import check_host

LEVELS = list(X86_LEVELS)
OPTIONAL = ["avx", "avx2", "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl", "bmi2", "f16c", "fma"]


@pytest.mark.parametrize(
    ("name", "bits", "registers", "lanes32"),
    [
        ("x86-64", 128, 16, 4),
        ("x86-64-v2", 128, 16, 4),
        ("x86-64-v3", 256, 16, 8),
        ("x86-64-v4", 512, 32, 16),
        ("aarch64", 128, 32, 4),
    ],
)
def test_registers(name: str, bits: int, registers: int, lanes32: int) -> None:
    target = Target.parse(name)
    assert (target.vector_bits, target.vector_registers, target.lanes(32)) == (bits, registers, lanes32)
    assert target.lanes(8) == bits // 8
    assert target.lanes(4096) == 1
    assert str(target) == name


@pytest.mark.parametrize(
    ("bits", "extent", "lanes"),
    [(32, 1, 4), (32, 4, 4), (32, 5, 8), (32, 8, 8), (32, 9, 16), (32, 500, 16), (64, 2, 2), (64, 3, 4), (8, 17, 32)],
)
def test_lanes_of_short_axes_are_those_of_the_narrowest_register(bits: int, extent: int, lanes: int) -> None:
    assert Target.parse("x86-64-v4").lanes(bits, extent) == lanes
    assert Target.parse("aarch64").lanes(bits, extent) == 128 // bits


def test_feature_strings() -> None:
    assert Target.parse("x86-64").feature_string == "+cmov,+cx8,+fxsr,+mmx,+sse,+sse2"
    assert Target.parse("aarch64").feature_string == "+fp-armv8,+neon"
    v4 = Target.parse("x86-64-v4")
    assert v4.features[-1] == "-prefer-256-bit"
    assert "prefer-256-bit" not in v4.required
    assert v4.has("avx512f")
    assert not Target.parse("x86-64-v3").has("avx512f")
    assert v4.triple == "x86_64-unknown-linux-gnu"


def test_levels_contain_each_other() -> None:
    sizes = [set(level_features(level)) for level in LEVELS]
    assert all(low < high for low, high in pairwise(sizes))


@given(st.sampled_from(LEVELS), st.sets(st.sampled_from(OPTIONAL)))
def test_names_read_back(level: str, extra: set[str]) -> None:
    target = Target.parse("+".join([level, *sorted(extra)]))
    assert Target.parse(str(target)) == target
    assert all(target.has(feature) for feature in with_prerequisites(frozenset(extra)) & set(OPTIONAL))
    assert list(target.required) == sorted(set(target.required))


def test_host_is_always_the_same_and_runs_here() -> None:
    assert Target.host() == Target.parse("host") == Target.parse("native")
    assert Target.host().runs_here
    Target.host().check_host()


@pytest.mark.parametrize("name", ["x86-65", "", "sparc", "host+avx", "x86-64-v5", "x86-64+avx10", "aarch64+sve"])
def test_unknown_target(name: str) -> None:
    with pytest.raises(TargetError) as error:
        Target.parse(name)
    if name == "x86-64+avx10":
        what = f"unknown feature 'avx10', expected one of {', '.join(OPTIONAL)}"
    else:
        what = "unknown target, expected one of host, x86-64, x86-64-v2, x86-64-v3, x86-64-v4, aarch64"
    assert str(error.value) == f"[target] target '{name}': {what}"


def test_features_that_this_machine_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.machine.target.host_features", lambda: frozenset(level_features("x86-64-v3")))
    monkeypatch.setattr("tilewright.machine.target.host_arch", lambda: "x86_64")
    target = Target.parse("x86-64-v4")
    assert not target.runs_here
    with pytest.raises(TargetError) as error:
        target.check_host()
    assert str(error.value) == (
        "[target] target 'x86-64-v4': this machine lacks the CPU features avx512bw, avx512cd, avx512dq, avx512f, "
        "avx512vl; compile with --target x86-64-v3 or for the machine it runs on"
    )
    assert Target.parse("x86-64-v3").runs_here


def test_other_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.machine.target.host_arch", lambda: "aarch64")
    with pytest.raises(TargetError) as error:
        check_host("x86_64", (), "file 'a.tw'")
    assert str(error.value) == (
        "[target] file 'a.tw': code for x86_64, this machine is aarch64; compile for this machine"
    )


def test_host_takes_the_best_level(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.machine import target as module

    monkeypatch.setattr(module, "host_arch", lambda: "x86_64")
    for level in LEVELS:
        have = frozenset(level_features(level)) | {"sha", "amx-tile"}
        monkeypatch.setattr(module, "host_features", lambda have=have: have)
        module._host_target.cache_clear()
        assert str(Target.host()) == level
        assert Target.host().cpu == level
    sandy_bridge = frozenset(level_features("x86-64-v2")) | {"avx", "xsave"}
    monkeypatch.setattr(module, "host_features", lambda: sandy_bridge)
    module._host_target.cache_clear()
    assert str(Target.host()) == "x86-64-v2+avx"
    assert Target.host().vector_bits == 256
    module._host_target.cache_clear()


def test_host_of_an_unknown_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.machine import target as module

    monkeypatch.setattr(module, "host_arch", lambda: "riscv64")
    module._host_target.cache_clear()
    with pytest.raises(TargetError) as error:
        Target.host()
    assert str(error.value) == "[target] target 'host': this machine is riscv64, expected x86_64 or aarch64"
    module._host_target.cache_clear()


def test_cpuinfo() -> None:
    text = "processor\t: 0\nflags\t\t: fpu sse2 pni ssse3 sse4_1 sse4_2 avx abm bmi1 lahf_lm\nbogomips: 5\n"
    assert features_from_cpuinfo(text) == {
        "fpu", "sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "avx", "lzcnt", "bmi", "sahf", "crc32",
    }  # fmt: skip
    assert features_from_cpuinfo("Features : fp asimd evtstrm") == {"fp-armv8", "neon", "evtstrm"}
    assert features_from_cpuinfo("") == frozenset()


def test_kernel_and_llvm_agree_on_this_machine() -> None:
    kernel = features_from_cpuinfo(Path("/proc/cpuinfo").read_text())
    relevant = set(level_features("x86-64-v4")) | {"neon", "fp-armv8"}
    # LLVM also asks whether the system saves the wide registers; the kernel's list says so too
    assert {f for f in relevant if f in cpu_features.host_features()} == {f for f in relevant if f in kernel}


def test_description_of_this_machine() -> None:
    machine = host()
    assert machine.arch == Target.host().arch
    assert machine.cpus >= 1
    assert machine.memory > 2**28
    assert set(Target.host().required) <= set(machine.features)
