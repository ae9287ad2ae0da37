"""Export of a torch network to one ONNX file, with `torch.onnx.export` (the torch.export based exporter, opset 18)."""

import logging
import warnings
from pathlib import Path

import torch

from benchmarks.zoo.inputs import Feeds
from benchmarks.zoo.networks import NETWORKS
from benchmarks.zoo.sources import ExportedNetwork

OPSET = 18
MAX_INLINE_BYTES = 150 << 20


def export(source: ExportedNetwork, feeds: Feeds, path: Path) -> None:
    """Write the network's ONNX file, traced at `feeds`; large weights go to a side file, as exporters do by default."""
    network = NETWORKS[source.network]()
    arguments = source.arguments({name: torch.from_numpy(array) for name, array in feeds.items()})
    dynamic = source.arguments({name: dict(source.dynamic[name]) for name in feeds}) if source.dynamic else None
    size = sum(parameter.numel() * parameter.element_size() for parameter in network.parameters())
    for noisy in ("onnxscript", "torch.onnx"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (),
            path,
            kwargs=arguments,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(feeds),
            output_names=list(source.outputs),
            dynamic_shapes=dynamic,
            external_data=size > MAX_INLINE_BYTES,
            verbose=False,
        )
