"""JSON of the manifest, written and read.

Writing is deterministic (sorted keys, no spaces), so equal manifests are equal bytes. Reading checks the type of every
field, then the manifest as a whole.
"""

import dataclasses
import json
from collections.abc import Mapping

from tilewright.errors import ArtifactError
from tilewright.runtime import schema
from tilewright.runtime.manifest import (
    ConstantSpec,
    ConstraintSpec,
    Dim,
    FallbackStep,
    IfStep,
    LoopStep,
    Manifest,
    ManifestStep,
    NativeStep,
    SizesStep,
    StepBlock,
    SymbolSpec,
    TensorSpec,
)
from tilewright.runtime.manifest_meta import BuildSpec, MachineSpec, ModelMeta, TargetSpec, VariantsSpec
from tilewright.runtime.schema import Json, array, as_object, as_text, integer, text


def manifest_to_json(manifest: Manifest) -> Json:
    """The manifest as JSON values; a step has the extra field "kind"."""
    obj: Json = dataclasses.asdict(manifest)
    obj["steps"] = [_step_to_json(step) for step in manifest.steps]
    if not manifest.variants:
        del obj["variants"]
    if manifest.tree is None:
        del obj["tree"]
    return obj


_STEP_KINDS: Mapping[type, str] = {
    NativeStep: "native", FallbackStep: "fallback", SizesStep: "sizes", IfStep: "if", LoopStep: "loop",
}  # fmt: skip
_BLOCKS = ("then_block", "else_block", "body")
"""Fields of steps that are blocks."""

_MAX_DEPTH = 16
"""Blocks inside each other that are read; a compiler writes fewer."""


def _step_to_json(step: ManifestStep) -> Json:
    obj: Json = {"kind": _STEP_KINDS[type(step)], **dataclasses.asdict(step)}
    for name in _BLOCKS:
        block = getattr(step, name, None)
        if isinstance(block, StepBlock):
            obj[name] = dataclasses.asdict(block) | {"steps": [_step_to_json(s) for s in block.steps]}
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
        # artifacts of the first format have no such field
        constants=array(obj, "constants", where, _parse_constant) if "constants" in obj else (),
        variants=array(obj, "variants", where, _parse_variants) if "variants" in obj else (),
        tree=text(obj, "tree", where) if "tree" in obj else None,
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


def _parse_constant(value: object, where: str, what: str) -> ConstantSpec:
    obj = as_object(value, where, what)
    return ConstantSpec(_parse_spec(schema.field(obj, "value", where), where, what), text(obj, "weight", where))


def _parse_variants(value: object, where: str, what: str) -> VariantsSpec:
    obj = as_object(value, where, what)
    lists = {name: array(obj, name, where, as_text) for name in ("nodes", "symbols", "programs", "picoseconds")}
    return VariantsSpec(kernel=text(obj, "kernel", where), selector=text(obj, "selector", where), **lists)


def _parse_step(value: object, where: str, what: str, depth: int = 0) -> ManifestStep:
    obj = as_object(value, where, what)
    kind = text(obj, "kind", where)
    inputs, outputs = array(obj, "inputs", where, _parse_spec), array(obj, "outputs", where, _parse_spec)
    nodes = array(obj, "nodes", where, as_text)

    def block(name: str) -> StepBlock:
        return _parse_block(schema.field(obj, name, where), where, f"{what}.{name}", depth + 1)

    match kind:
        case "native":
            return NativeStep(
                prefix=text(obj, "prefix", where),
                inputs=inputs,
                outputs=outputs,
                weights=array(obj, "weights", where, as_text),
                symbols=array(obj, "symbols", where, as_text),
                constraints=array(obj, "constraints", where, _parse_constraint),
                nodes=nodes,
                # artifacts of older formats have no such field
                failures=array(obj, "failures", where, _parse_constraint) if "failures" in obj else (),
            )
        case "sizes":
            return SizesStep(
                array(obj, "symbols", where, as_text), array(obj, "positions", where, schema.as_integer),
                inputs, outputs, nodes,
            )  # fmt: skip
        case "fallback":
            return FallbackStep(text(obj, "model", where), inputs, outputs, nodes)
        case "if":
            condition = text(obj, "condition", where)
            return IfStep(condition, block("then_block"), block("else_block"), inputs, outputs, nodes)
        case "loop":
            return LoopStep(
                trip_count=_optional_text(obj, "trip_count", where),
                condition=_optional_text(obj, "condition", where),
                initial=array(obj, "initial", where, as_text),
                is_counted=schema.boolean(obj, "is_counted", where),
                body=block("body"),
                inputs=inputs,
                outputs=outputs,
                nodes=nodes,
            )
        case _:
            raise ArtifactError(f"{what}: unknown kind of step '{kind}'", where=where, hint=schema.DAMAGED)


def _optional_text(obj: Json, name: str, where: str) -> str | None:
    return None if schema.field(obj, name, where) is None else text(obj, name, where)


def _parse_block(value: object, where: str, what: str, depth: int) -> StepBlock:
    if depth > _MAX_DEPTH:
        raise ArtifactError(f"{what}: expected at most {_MAX_DEPTH} blocks inside each other", where=where)
    obj = as_object(value, where, what)
    return StepBlock(
        inputs=array(obj, "inputs", where, _parse_spec),
        captures=array(obj, "captures", where, as_text),
        constants=array(obj, "constants", where, _parse_constant),
        symbols=array(obj, "symbols", where, _parse_symbol),
        steps=array(obj, "steps", where, lambda v, w, x: _parse_step(v, w, x, depth)),
        outputs=array(obj, "outputs", where, _parse_spec),
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
