"""Versions of ONNX operator sets."""

from collections.abc import Iterator

import onnx
import onnx.defs

from tilewright.errors import Defect

MIN_OPSET, MAX_OPSET = 1, 28
"""Supported versions of the standard operator set."""


def standard_domain(name: str) -> str:
    """The name of an operator set's domain, with "" for both names of the standard one."""
    return "" if name == "ai.onnx" else name


def opset_versions(model: onnx.ModelProto) -> dict[str, int]:
    """The version of every operator set that the model imports, by domain."""
    return {standard_domain(o.domain): o.version for o in model.opset_import}


def check_opsets(opsets: dict[str, int]) -> Iterator[Defect]:
    """Problems with the imported versions."""
    newest = min(MAX_OPSET, onnx.defs.onnx_opset_version())
    version = opsets.get("")
    if version is not None and not MIN_OPSET <= version <= newest:
        yield Defect(
            "opset",
            "model",
            f"expected version {MIN_OPSET} to {newest} of the standard operator set, got {version}",
            "convert the model with onnx.version_converter or export it again",
        )
