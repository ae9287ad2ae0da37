"""Seeded inputs of the kinds that the zoo's models really see: photographs, text lines, token ids, file contents.

Each generator takes a NumPy generator and the sizes of one shape set, and returns the feeds by input name.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Feeds = dict[str, NDArray[np.generic]]
Sizes = Mapping[str, int]

LETTERS = np.array(list("abcdefghijkmnopqrstuvwxyzABCDEFGHKLMNPRSTUVWXY0123456789"))
MAGIKA_BYTES = 2048
MAGIKA_PADDING = 256


def photograph(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Normalised pixels [..., height, width] with the smoothness of a photograph: noise plus its running means."""
    noise = rng.standard_normal(shape, dtype=np.float32)
    smooth = noise
    for axis in (-1, -2):
        for step in (1, 2, 4):
            smooth = smooth + np.roll(smooth, step, axis)
    smooth = smooth / smooth.std()
    return np.ascontiguousarray(0.9 * smooth + 0.3 * noise, dtype=np.float32)


def text_image(rng: np.random.Generator, height: int, width: int, font_size: int) -> NDArray[np.float32]:
    """Pixels in [-1, 1], [3, height, width]: dark random words on a light, slightly noisy ground."""
    image = Image.new("RGB", (width, height), (235, 240, 230))
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=font_size)
    line_height = font_size + font_size // 2
    for top in range(max((height - line_height) // 2 % line_height, 2), max(height - font_size, 3), line_height):
        words = ["".join(rng.choice(LETTERS, size=rng.integers(3, 9))) for _ in range(max(1, width // (4 * font_size)))]
        draw.text((font_size // 2, top), " ".join(words), fill=(20, 25, 60), font=font)
    pixels = np.asarray(image, dtype=np.float32) + rng.normal(0.0, 4.0, (height, width, 3))
    scaled = np.clip(pixels, 0.0, 255.0) / 127.5 - 1.0
    return np.ascontiguousarray(scaled.transpose(2, 0, 1), dtype=np.float32)


def images(rng: np.random.Generator, sizes: Sizes) -> Feeds:
    """`pixel_values` float32 [batch, 3, height, width]; height and width are 224 unless given."""
    shape = (sizes["batch"], 3, sizes.get("height", 224), sizes.get("width", 224))
    return {"pixel_values": photograph(rng, *shape)}


def picture(rng: np.random.Generator, sizes: Sizes) -> Feeds:
    """`images` float32 [1, 3, height, width] from 0 to 1."""
    pixels = 0.5 + 0.2 * photograph(rng, 1, 3, sizes["height"], sizes["width"])
    return {"images": np.clip(pixels, 0, 1, dtype=np.float32)}


def video(rng: np.random.Generator, sizes: Sizes) -> Feeds:
    """`video` float32 [batch, 3, frames, height, width]."""
    shape = (sizes["batch"], 3, sizes["frames"], sizes["height"], sizes["width"])
    return {"video": photograph(rng, *shape)}


def tokens(rng: np.random.Generator, sizes: Sizes, vocabulary: int) -> Feeds:
    """`input_ids` and `attention_mask`, int64 [batch, sequence]; all but the first row end in some padding."""
    batch, sequence = sizes["batch"], sizes["sequence"]
    ids = rng.integers(5, vocabulary, (batch, sequence), dtype=np.int64)
    lengths = rng.integers(max(sequence // 2, 1), sequence + 1, batch)
    lengths[0] = sequence if batch > 1 else max(sequence - sequence // 4, 1)
    mask = (np.arange(sequence)[None, :] < lengths[:, None]).astype(np.int64)
    return {"input_ids": ids * mask, "attention_mask": mask}


def bert_tokens(rng: np.random.Generator, sizes: Sizes) -> Feeds:
    """Feeds of BERT with its vocabulary of 30522."""
    return tokens(rng, sizes, 30522)


def gpt2_tokens(rng: np.random.Generator, sizes: Sizes) -> Feeds:
    """Feeds of GPT-2 with its vocabulary of 50257."""
    return tokens(rng, sizes, 50257)


GPT2_LAYERS, GPT2_HEADS, GPT2_HEAD = 12, 12, 64
CACHE_NAMES = tuple(f"past_{layer}_{x}" for layer in range(GPT2_LAYERS) for x in ("key", "value"))
"""Inputs of GPT-2's cache, in the order in which the network takes them."""


def cached_tokens(rng: np.random.Generator, sizes: Sizes) -> Feeds:
    """Feeds of GPT-2 with a cache: `input_ids` int64 [batch, new], `attention_mask` int64 [batch, past + new] of ones,
    and per layer `past_L_key` and `past_L_value`, float32 [batch, 12, past, 64]."""
    batch, past, new = sizes["batch"], sizes["past"], sizes.get("new", 1)
    ids = rng.integers(5, 50257, (batch, new), dtype=np.int64)
    shape = (batch, GPT2_HEADS, past, GPT2_HEAD)
    cache = {name: rng.standard_normal(shape, dtype=np.float32) for name in CACHE_NAMES}
    return {"input_ids": ids, "attention_mask": np.ones((batch, past + new), np.int64), **cache}


def sentence_tokens(rng: np.random.Generator, sizes: Sizes) -> Feeds:
    """Feeds of all-MiniLM-L6-v2: BERT's, and token types, the second half of each row being a second segment."""
    feeds = tokens(rng, sizes, 30522)
    types = (np.arange(sizes["sequence"]) >= sizes["sequence"] // 2).astype(np.int64)
    return {**feeds, "token_type_ids": np.tile(types, (sizes["batch"], 1))}


def document(rng: np.random.Generator, sizes: Sizes) -> Feeds:
    """`x` of the text detector: pages of text."""
    pages = [text_image(rng, sizes["height"], sizes["width"], 24) for _ in range(sizes["batch"])]
    return {"x": np.stack(pages)}


def text_lines(rng: np.random.Generator, sizes: Sizes) -> Feeds:
    """`x` of the text recogniser and classifier: lines of text, 48 pixels high."""
    lines = [text_image(rng, 48, sizes["width"], 30) for _ in range(sizes["batch"])]
    return {"x": np.stack(lines)}


def file_bytes(rng: np.random.Generator, sizes: Sizes) -> Feeds:
    """`bytes` of magika, int32 [batch, 2048]: text or binary content, short files padded with 256 in the middle."""
    rows = np.where(
        rng.random((sizes["batch"], 1)) < 0.5,
        rng.integers(32, 127, (sizes["batch"], MAGIKA_BYTES)),
        rng.integers(0, 256, (sizes["batch"], MAGIKA_BYTES)),
    )
    for row in rows[::2]:
        used = int(rng.integers(64, MAGIKA_BYTES // 2))
        row[used:-used] = MAGIKA_PADDING
    return {"bytes": rows.astype(np.int32)}
