"""JSON of the manifest, written and read.

Writing is deterministic (sorted keys, no spaces), so equal manifests are equal bytes. Reading checks the type of every
field, then the manifest as a whole.
"""

import dataclasses
import json

from tilewright.errors import ArtifactError
from tilewright.runtime import schema
from tilewright.runtime.manifest import (
    BuildSpec,
    ConstraintSpec,
    Dim,
    FallbackStep,
    MachineSpec,
    Manifest,
    ManifestStep,
    ModelMeta,
    NativeStep,
    SymbolSpec,
    TargetSpec,
    TensorSpec,
)
from tilewright.runtime.schema import Json, array, as_object, as_text, integer, text


def manifest_to_json(manifest: Manifest) -> Json:
    """The manifest as JSON values; a step has the extra field "kind"."""
    obj: Json = dataclasses.asdict(manifest)
    obj["steps"] = [
        {"kind": "native" if isinstance(step, NativeStep) else "fallback", **dataclasses.asdict(step)}
        for step in manifest.steps
    ]
    return obj


def dump_json(obj: Json) -> bytes:
    """The JSON text of an object; equal objects give equal bytes."""
    return json.dumps(obj, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def manifest_from_json(obj: Json, where: str) -> Manifest:
    """Reads and checks a manifest.

    Args:
        obj: parsed JSON.
        where: the place in errors, such as "file 'model.tw'".

    Raises:
        ArtifactError: a field is missing or of the wrong type, or the manifest is inconsistent.
    """
    manifest = Manifest(
        inputs=array(obj, "inputs", where, _parse_spec),
        outputs=array(obj, "outputs", where, _parse_spec),
        symbols=array(obj, "symbols", where, _parse_symbol),
        steps=array(obj, "steps", where, _parse_step),
        target=_parse_target(schema.field(obj, "target", where), where),
        meta=_parse_meta(schema.field(obj, "meta", where), where),
        build=_parse_build(obj.get("build"), where),
    )
    manifest.check(where)
    return manifest


def _parse_spec(value: object, where: str, what: str) -> TensorSpec:
    obj = as_object(value, where, what)
    return TensorSpec(text(obj, "name", where), text(obj, "dtype", where), array(obj, "dims", where, _parse_dim))


def _parse_dim(value: object, where: str, what: str) -> Dim:
    if value is None or isinstance(value, str):
        return value
    return schema.as_integer(value, where, what)


def _parse_symbol(value: object, where: str, what: str) -> SymbolSpec:
    obj = as_object(value, where, what)
    hi = schema.field(obj, "hi", where)
    return SymbolSpec(
        text(obj, "name", where),
        integer(obj, "lo", where),
        None if hi is None else schema.as_integer(hi, where, f"{what}.hi"),
    )


def _parse_constraint(value: object, where: str, what: str) -> ConstraintSpec:
    obj = as_object(value, where, what)
    return ConstraintSpec(text(obj, "text", where), text(obj, "where", where))


def _parse_step(value: object, where: str, what: str) -> ManifestStep:
    obj = as_object(value, where, what)
    kind = text(obj, "kind", where)
    inputs, outputs = array(obj, "inputs", where, _parse_spec), array(obj, "outputs", where, _parse_spec)
    nodes = array(obj, "nodes", where, as_text)
    if kind == "fallback":
        return FallbackStep(text(obj, "model", where), inputs, outputs, nodes)
    if kind != "native":
        raise ArtifactError(f"{what}: unknown kind of step '{kind}'", where=where, hint=schema.DAMAGED)
    return NativeStep(
        prefix=text(obj, "prefix", where),
        inputs=inputs,
        outputs=outputs,
        weights=array(obj, "weights", where, as_text),
        symbols=array(obj, "symbols", where, as_text),
        constraints=array(obj, "constraints", where, _parse_constraint),
        nodes=nodes,
    )


def _parse_target(value: object, where: str) -> TargetSpec:
    obj = as_object(value, where, "manifest field 'target'")
    return TargetSpec(
        triple=text(obj, "triple", where),
        cpu=text(obj, "cpu", where),
        features=array(obj, "features", where, as_text),
        required=array(obj, "required", where, as_text),
    )


def _parse_meta(value: object, where: str) -> ModelMeta:
    obj = as_object(value, where, "manifest field 'meta'")
    return ModelMeta(
        graph_name=text(obj, "graph_name", where),
        producer_name=text(obj, "producer_name", where),
        producer_version=text(obj, "producer_version", where),
        domain=text(obj, "domain", where),
        # ONNX allows any 64-bit number, negative ones too
        model_version=integer(obj, "model_version", where, lo=-(2**63)),
        description=text(obj, "description", where),
        custom=array(obj, "custom", where, _parse_pair),
    )


def _parse_build(value: object, where: str) -> BuildSpec | None:
    if value is None:
        return None
    obj = as_object(value, where, "manifest field 'build'")
    seed, machine = schema.field(obj, "seed", where), schema.field(obj, "machine", where)
    return BuildSpec(
        version=text(obj, "version", where),
        optimizer=text(obj, "optimizer", where),
        seed=None if seed is None else schema.as_integer(seed, where, "manifest field 'seed'"),
        machine=None if machine is None else _parse_machine(machine, where),
        convolutions=text(obj, "convolutions", where),
        # artifacts that were made before chains were fused do not say that theirs are not
        fusion=text(obj, "fusion", where) if "fusion" in obj else "unfused",
        # older kernels have one program
        variants=integer(obj, "variants", where, lo=1) if "variants" in obj else 1,
    )


def _parse_machine(value: object, where: str) -> MachineSpec:
    obj = as_object(value, where, "manifest field 'machine'")
    return MachineSpec(text(obj, "name", where), text(obj, "origin", where), text(obj, "sha256", where))


def _parse_pair(value: object, where: str, what: str) -> tuple[str, str]:
    words = schema.as_array(value, where, what, as_text)
    if len(words) != 2:
        raise ArtifactError(f"{what}: expected a pair of strings, got {len(words)}", where=where, hint=schema.DAMAGED)
    return words[0], words[1]
