"""Descriptions of processors by the text of /proc/cpuinfo: by model, and by features where the model is hidden."""

from itertools import pairwise

import pytest

from tilewright.machine import Target
from tilewright.machine.origin import Origin
from tilewright.machine.shipped import describe_processor, machine_named, machine_of_features, shipped_machines

HASWELL = "fpu sse sse2 ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt avx f16c rdrand abm bmi1 avx2 smep bmi2 erms invpcid"
SKYLAKE = f"{HASWELL} avx512f avx512dq rdseed adx smap clflushopt clwb avx512cd avx512bw avx512vl xsaveopt"
ICELAKE = f"{SKYLAKE} avx512ifma sha_ni avx512vbmi avx512_vbmi2 gfni vaes vpclmulqdq avx512_bitalg rdpid fsrm"
ALDER_LAKE = f"{HASWELL} clflushopt clwb sha_ni avx_vnni gfni vaes vpclmulqdq rdpid movdiri movdir64b fsrm serialize"
SAPPHIRE_RAPIDS = f"{ICELAKE} avx_vnni avx512_bf16 cldemote movdiri movdir64b amx_bf16 avx512_fp16 amx_tile amx_int8"
ZEN2 = f"{HASWELL} sse4a misalignsse topoext clflushopt clwb sha_ni rdpid wbnoinvd"
ZEN3 = f"{ZEN2} vaes vpclmulqdq fsrm"
ZEN4 = f"{ZEN3} avx512f avx512dq avx512ifma avx512cd avx512bw avx512vl avx512_bf16 avx512_vbmi2 gfni avx512_vnni"
ZEN5 = f"{ZEN4} avx_vnni avx512_vp2intersect movdiri movdir64b"


def cpuinfo(vendor: str, family: int, model: int, flags: str) -> str:
    """The text of two equal processors."""
    one = f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: CPU\nflags\t\t: {flags}\n"
    return f"processor\t: 0\n{one}\nprocessor\t: 1\n{one}\n"


@pytest.mark.parametrize(
    ("vendor", "family", "model", "flags", "name", "origin"),
    [
        ("GenuineIntel", 6, 63, HASWELL, "haswell", Origin.SHIPPED),
        ("GenuineIntel", 6, 85, SKYLAKE, "skylake-server", Origin.SHIPPED),
        ("GenuineIntel", 6, 106, ICELAKE, "icelake-server", Origin.SHIPPED),
        ("GenuineIntel", 6, 151, ALDER_LAKE, "alder-lake", Origin.SHIPPED),
        ("GenuineIntel", 6, 143, SAPPHIRE_RAPIDS, "sapphire-rapids", Origin.SHIPPED),
        ("GenuineIntel", 6, 173, SAPPHIRE_RAPIDS, "granite-rapids", Origin.SHIPPED),
        ("AuthenticAMD", 23, 49, ZEN2, "zen2", Origin.SHIPPED),
        ("AuthenticAMD", 25, 33, ZEN3, "zen3", Origin.SHIPPED),
        ("AuthenticAMD", 25, 1, ZEN3, "milan", Origin.SHIPPED),
        ("AuthenticAMD", 25, 17, ZEN4, "zen4", Origin.SHIPPED),
        ("AuthenticAMD", 26, 2, ZEN5, "zen5", Origin.SHIPPED),
        # virtual machines that report the model of another processor, or none
        ("GenuineIntel", 6, 167, SAPPHIRE_RAPIDS, "sapphire-rapids", Origin.FEATURES),
        ("GenuineIntel", 6, 0, SAPPHIRE_RAPIDS.replace(" amx_tile", ""), "sapphire-rapids", Origin.FEATURES),
        ("GenuineIntel", 6, 0, ICELAKE, "icelake-server", Origin.FEATURES),
        ("GenuineIntel", 6, 0, SKYLAKE, "skylake-server", Origin.FEATURES),
        ("GenuineIntel", 6, 0, ALDER_LAKE, "alder-lake", Origin.FEATURES),
        ("GenuineIntel", 6, 0, HASWELL, "haswell", Origin.FEATURES),
        ("AuthenticAMD", 26, 200, ZEN5, "zen5", Origin.FEATURES),
        ("AuthenticAMD", 25, 200, ZEN4, "zen4", Origin.FEATURES),
        ("AuthenticAMD", 25, 200, ZEN3, "milan", Origin.FEATURES),
        ("AuthenticAMD", 23, 200, ZEN2, "zen2", Origin.FEATURES),
        # a newer generation than the package knows
        ("GenuineIntel", 19, 1, f"{SAPPHIRE_RAPIDS} avx10_2", "sapphire-rapids", Origin.FEATURES),
        # features of another vendor say nothing
        ("CentaurHauls", 7, 59, SAPPHIRE_RAPIDS, "x86-64-v4", Origin.GENERIC),
        ("GenuineIntel", 6, 42, "fpu sse sse2 ssse3 sse4_1 sse4_2 popcnt avx", "x86-64-v3", Origin.GENERIC),
        ("", 0, 0, "", "x86-64-v3", Origin.GENERIC),
        # a hidden feature must not make it a generation with other vectors
        ("AuthenticAMD", 25, 200, ZEN4.replace(" avx512_bf16", ""), "x86-64-v4", Origin.GENERIC),
    ],
)
def test_known_processors(vendor: str, family: int, model: int, flags: str, name: str, origin: Origin) -> None:
    text = cpuinfo(vendor, family, model, flags)
    target = Target.parse("x86-64-v4" if "avx512vl" in flags else "x86-64-v3")
    assert describe_processor(text, target) == (machine_named(name), origin)


def test_a_model_that_is_known_counts_more_than_features() -> None:
    assert describe_processor(cpuinfo("GenuineIntel", 6, 85, SAPPHIRE_RAPIDS), Target.parse("x86-64-v4")) == (
        machine_named("skylake-server"),
        Origin.SHIPPED,
    )


def test_text_without_a_processor() -> None:
    assert machine_of_features("") is None
    assert machine_of_features("flags : avx2 fma\n") is None
    arm = "processor : 0\nCPU implementer : 0x41\nCPU part : 0xfff\nFeatures : fp asimd\n"
    assert describe_processor(arm, Target.parse("aarch64")) == (machine_named("aarch64"), Origin.GENERIC)


@pytest.mark.parametrize("vendor", ["GenuineIntel", "AuthenticAMD"])
def test_a_vendors_descriptions_differ_in_their_features(vendor: str) -> None:
    """Else the order of files would decide; each generation with wide vectors has the features of the one before."""
    described = [m for m in shipped_machines().values() if m.features and m.identify[0].startswith(vendor)]
    listed = sorted((set(m.features) for m in described), key=len)
    assert len({frozenset(features) for features in listed}) == len(listed) > 3
    wide = [features for features in listed if "avx512f" in features]
    assert all(older < newer for older, newer in pairwise(wide))
