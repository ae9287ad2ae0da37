"""Reasons in the user's words: stages of a fused kernel named by the nodes that they compute."""

import re

from tilewright.graph.kernel import Kernel


def with_node_names(reason: str, kernel: Kernel) -> str:
    """A reason with quoted names of a kernel's stages replaced by their labels: "'t0' is float64" becomes "the result
    of scores (MatMul) is float64".

    Args:
        reason: why a kernel has no program; names of stages are those of their buffers.
        kernel: the kernel.
    """
    labels = {s.output.name: s.label for s in kernel.stages if s.label}

    def named(match: re.Match[str]) -> str:
        label = labels.get(match[1])
        return match[0] if label is None else f"the result of {label}"

    return re.sub(r"'(\w+)'", named, reason)
