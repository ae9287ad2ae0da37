"""The list of the zoo's models."""

from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.zoo import inputs
from benchmarks.zoo.inputs import Feeds, Sizes
from benchmarks.zoo.model import Model, size_sets
from benchmarks.zoo.sources import BuiltGraph, ExportedNetwork, PackagedModel
from benchmarks.zoo.wheel_models import wheel_models
from benchmarks.zoo.yolo import yolov8

_batch_sizes = size_sets("batch")
_picture_sizes = size_sets("batch", "height", "width")
_view_sizes = size_sets("height", "width")
_line_sizes = size_sets("batch", "width")
_clip_sizes = size_sets("batch", "frames", "height", "width")
_text_sizes = size_sets("batch", "sequence")

_BATCH_OF_PIXELS = {"pixel_values": {0: "batch"}}
_TOKEN_AXES = {0: "batch", 1: "sequence"}
_TOKENS = {"input_ids": _TOKEN_AXES, "attention_mask": _TOKEN_AXES}
_TEXT_RANGES = {"batch": "1..64", "sequence": "1..512"}
_BATCH_RANGE = {"batch": "1..64"}
_BATCH_SIZES = ((1,), (2,), (3,), (4,), (7,))
_TEXT_SIZES = ((1, 32), (1, 128), (1, 384), (4, 128), (3, 17))


def _classifier(name: str, network: str, dynamic_shapes: tuple[tuple[int, ...], ...] = _BATCH_SIZES) -> list[Model]:
    """The static model at batch 1 and the one with a dynamic batch, of one image classifier."""
    static = ExportedNetwork(network, ("logits",), {"batch": 1})
    dynamic = ExportedNetwork(network, ("logits",), {"batch": 3}, _BATCH_OF_PIXELS)
    return [
        Model(name, static, inputs.images, _batch_sizes((1,))),
        Model(f"{name}_dyn", dynamic, inputs.images, _batch_sizes(*dynamic_shapes), _BATCH_RANGE),
    ]


def _language(
    name: str, feeds: Callable[[np.random.Generator, Sizes], Feeds], outputs: tuple[str, ...], ranges: Mapping[str, str]
) -> list[Model]:
    """The static model at 1x128 and the one with dynamic batch and sequence, of one language model."""
    example = {"batch": 1, "sequence": 128}
    dynamic = ExportedNetwork(name, outputs, {"batch": 3, "sequence": 24}, _TOKENS)
    return [
        Model(name, ExportedNetwork(name, outputs, example), feeds, (example,)),
        Model(f"{name}_dyn", dynamic, feeds, _text_sizes(*_TEXT_SIZES), ranges),
    ]


def _generation() -> Model:
    """One token of GPT-2 after a past of any length, whose keys and values come in and go out."""
    cache = {name: {0: "batch", 2: "past"} for name in inputs.CACHE_NAMES}
    axes = {"input_ids": {0: "batch"}, "attention_mask": {0: "batch", 1: "total"}, **cache}
    outputs = ("logits", *(name.replace("past", "present") for name in inputs.CACHE_NAMES))
    source = ExportedNetwork("gpt2_cached", outputs, {"batch": 3, "past": 24}, axes, {"past": "past_"})
    shapes = size_sets("batch", "past")((1, 1), (1, 128), (1, 1023), (4, 1), (4, 128), (4, 1023))
    return Model("gpt2_cached", source, inputs.cached_tokens, shapes, {"batch": "1..64", "past": "0..1023"})


def _packaged_models() -> list[Model]:
    """The models that installed packages bring along: trained weights, other exporters than torch."""
    ppocr = "rapidocr_onnxruntime"
    return [
        Model(
            "ppocr_det",
            PackagedModel(ppocr, "models/ch_PP-OCRv4_det_infer.onnx"),
            inputs.document,
            _picture_sizes((1, 320, 320), (1, 640, 480), (1, 736, 1280), (2, 224, 416), (1, 96, 608)),
        ),
        Model(
            "ppocr_rec",
            PackagedModel(ppocr, "models/ch_PP-OCRv4_rec_infer.onnx"),
            inputs.text_lines,
            _line_sizes((1, 320), (6, 320), (3, 517), (1, 97), (2, 800)),
        ),
        Model(
            "ppocr_cls",
            PackagedModel(ppocr, "models/ch_ppocr_mobile_v2.0_cls_infer.onnx"),
            inputs.text_lines,
            _line_sizes((1, 192), (2, 192), (3, 192), (4, 192), (6, 192)),
        ),
        Model(
            "magika",
            PackagedModel("magika", "models/standard_v3_3/model.onnx"),
            inputs.file_bytes,
            _batch_sizes((1,), (2,), (3,), (8,), (32,)),
        ),
    ]


def _sentence_encoder() -> Model:
    dynamic = {**_TOKENS, "token_type_ids": _TOKEN_AXES}
    source = ExportedNetwork(
        "minilm", ("token_embeddings", "sentence_embedding"), {"batch": 3, "sequence": 24}, dynamic
    )
    shapes = _text_sizes((1, 8), (1, 32), (3, 17), (8, 64), (1, 256), (2, 128))
    return Model("minilm", source, inputs.sentence_tokens, shapes, _TEXT_RANGES)


def _videos() -> list[Model]:
    clip = {"batch": 1, "frames": 16, "height": 112, "width": 112}
    axes = {"video": {0: "batch", 2: "frames", 3: "height", 4: "width"}}
    dynamic = ExportedNetwork("r3d18", ("logits",), {"batch": 3, "frames": 10, "height": 50, "width": 58}, axes)
    ranges = {"batch": "1..16", "frames": "1..64", "height": "16..256", "width": "16..256"}
    shapes = _clip_sizes((1, 8, 112, 112), (2, 8, 56, 56), (1, 16, 64, 64), (3, 4, 48, 80), (2, 5, 40, 37))
    return [
        Model("r3d18", ExportedNetwork("r3d18", ("logits",), clip), inputs.video, (clip,)),
        Model("r3d18_dyn", dynamic, inputs.video, shapes, ranges),
    ]


def _resnet_of_any_size() -> Model:
    axes = {"pixel_values": {0: "batch", 2: "height", 3: "width"}}
    source = ExportedNetwork("resnet18", ("logits",), {"batch": 3, "height": 200, "width": 232}, axes)
    shapes = _picture_sizes((1, 224, 224), (2, 160, 192), (1, 97, 131), (4, 64, 64), (1, 320, 256))
    ranges = {"batch": "1..64", "height": "32..512", "width": "32..512"}
    return Model("resnet18_dyn", source, inputs.images, shapes, ranges)


def _detector() -> Model:
    """YOLOv8n for a picture of any size, whose range nobody tells."""
    shapes = _view_sizes((320, 320), (480, 640), (640, 640))
    return Model("yolov8n", BuiltGraph(yolov8), inputs.picture, shapes)


_HIDDEN = ("last_hidden_state", "pooler_output")

MODELS: dict[str, Model] = {
    model.name: model
    for model in [
        *_packaged_models(),
        *wheel_models(),
        _sentence_encoder(),
        _classifier("resnet18", "resnet18")[0],
        _resnet_of_any_size(),
        *_classifier("resnet50", "resnet50"),
        *_classifier("mobilenetv2", "mobilenetv2"),
        *_videos(),
        _detector(),
        *_classifier("mlp_mixer", "mlp_mixer"),
        *_language("bert_tiny", inputs.bert_tokens, _HIDDEN, _TEXT_RANGES),
        _language("bert_small", inputs.bert_tokens, _HIDDEN, _TEXT_RANGES)[0],
        *_language("bert_base", inputs.bert_tokens, _HIDDEN, _TEXT_RANGES),
        *_language("gpt2", inputs.gpt2_tokens, ("logits",), {"batch": "1..64", "sequence": "1..1024"}),
        _generation(),
        *_classifier("vit_base", "vit_base", ((1,), (2,), (3,), (4,), (5,))),
    ]
}
