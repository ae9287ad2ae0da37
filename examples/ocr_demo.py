"""Read text from images with the RapidOCR pipeline, on ONNX Runtime and on Tilewright, and compare the two.

RapidOCR is a client of ONNX Runtime that knows nothing of Tilewright: the only change is the class behind the name
`InferenceSession` in the one module of it that creates sessions. Three models run (text detection, direction,
recognition), on images of several sizes drawn here; nothing is compiled again between sizes.

    python examples/ocr_demo.py [--threads 2] [--repeat 3] [--save FOLDER]

The exit status is 0 if the text of every image is recognised on Tilewright and both engines' outputs agree.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from rapidocr_onnxruntime import RapidOCR
from rapidocr_onnxruntime.utils import infer_engine

import tilewright

MAX_DIFFERENCE = 1e-3
PAUSE_SECONDS = 0.3
SECONDS_PER_DOT = 4.0

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Page:
    """One picture to read: its size in pixels, the height of its letters, and its lines of text."""

    width: int
    height: int
    font_size: int
    lines: tuple[str, ...]

    def draw(self) -> Pixels:
        """Return the page as pixels [height, width, 3]: dark letters on paper with a slight gradient."""
        shade = np.linspace(245, 225, self.height)[:, None, None]
        paper = np.broadcast_to(shade, (self.height, self.width, 3)).astype(np.uint8)
        image = Image.fromarray(np.ascontiguousarray(paper))
        font = ImageFont.load_default(size=self.font_size)
        pitch = self.height / (len(self.lines) + 1)
        for number, line in enumerate(self.lines, start=1):
            top = round(number * pitch - self.font_size / 2)
            ImageDraw.Draw(image).text((self.width // 16, top), line, fill=(25, 25, 45), font=font)
        return np.asarray(image)


PAGES = (
    Page(640, 400, 32, ("Compiled once for every size", "Order 4711 shipped", "Total 1289.50")),
    Page(1024, 768, 44, ("A compiler for deep learning", "Train 204 at 8:30", "Gate 17 to Lisbon", "Call 5550199")),
    Page(736, 992, 40, ("Invoice 2026", "Paper 12 boxes", "Pencils 48 pieces", "Signed by Ada Byron", "Thank you")),
    Page(1280, 480, 52, ("Wide pictures work as well", "and tall ones too 0123456789")),
)


@dataclass(slots=True)
class Call:
    """One inference that the pipeline asked for."""

    model: str
    feeds: dict[str, NDArray[np.generic]]
    outputs: list[NDArray[np.generic]]
    seconds: float


@dataclass(slots=True)
class Recorder:
    """Stands where RapidOCR expects the `InferenceSession` class: creates `engine` sessions and records their calls."""

    engine: Callable[..., Any]
    calls: list[Call] = field(default_factory=list[Call])
    seconds_to_create: float = 0.0

    def __call__(self, path: Any, **arguments: Any) -> "RecordedSession":
        print(f"    {Path(path).stem} ...", end="", flush=True)
        start = time.perf_counter()
        session = self.engine(path, **arguments)
        seconds = time.perf_counter() - start
        print(f" {seconds:.1f} s")
        self.seconds_to_create += seconds
        return RecordedSession(session, str(path), self.calls)


class ProgressDots:
    """Prints one every few seconds of a compilation, so that one sees that it goes on."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Told by Tilewright how many parts of a stage are done."""
        if time.monotonic() > self._last + SECONDS_PER_DOT:
            self._last = time.monotonic()
            print(".", end="", flush=True)


class RecordedSession:
    """A session that behaves as the wrapped one in everything, and notes down each run."""

    def __init__(self, session: Any, path: str, calls: list[Call]) -> None:
        self._session = session
        self._path = path
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, names: list[str] | None, feeds: dict[str, NDArray[np.generic]]) -> list[NDArray[np.generic]]:
        start = time.perf_counter()
        outputs = self._session.run(names, feeds)
        self._calls.append(Call(self._path, feeds, outputs, time.perf_counter() - start))
        return outputs


@dataclass(frozen=True, slots=True)
class Reading:
    """What one engine made of one page: the lines, and its time in the three models (median of the repetitions)."""

    text: tuple[str, ...]
    seconds: float
    calls: tuple[Call, ...]


@contextmanager
def session_class(engine: Callable[..., Any]) -> Generator[None]:
    """Let RapidOCR create its sessions with `engine` while the context lasts."""
    original = infer_engine.InferenceSession
    infer_engine.InferenceSession = engine
    try:
        yield
    finally:
        infer_engine.InferenceSession = original


def read_pages(engine: Callable[..., Any], threads: int, repeat: int) -> tuple[float, list[Reading]]:
    """Run the whole pipeline on every page; returns the seconds spent creating sessions and one reading per page."""
    recorder = Recorder(engine)
    with session_class(recorder):
        pipeline = RapidOCR(intra_op_num_threads=threads, inter_op_num_threads=1)
    readings: list[Reading] = []
    for page in PAGES:
        pixels = page.draw()
        seconds: list[float] = []
        text: tuple[str, ...] = ()
        for _ in range(repeat + 1):
            recorder.calls.clear()
            found, _ = pipeline(pixels)
            text = tuple(line[1] for line in found or ())
            seconds.append(sum(call.seconds for call in recorder.calls))
        # The first run of a size warms caches and is not counted.
        readings.append(Reading(text, statistics.median(seconds[1:]), tuple(recorder.calls)))
    return recorder.seconds_to_create, readings


def max_difference(readings: Sequence[Reading], threads: int) -> dict[str, float]:
    """Feed the recorded inputs to ONNX Runtime and return the largest absolute difference of outputs per model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    sessions: dict[str, Any] = {}
    differences: dict[str, float] = {}
    for call in (call for reading in readings for call in reading.calls):
        if call.model not in sessions:
            sessions[call.model] = onnxruntime.InferenceSession(call.model, options, providers=["CPUExecutionProvider"])
        expected = sessions[call.model].run(None, call.feeds)
        name = Path(call.model).stem
        for ours, theirs in zip(call.outputs, expected, strict=True):
            gap = float(np.abs(np.asarray(ours, np.float64) - theirs).max()) if ours.shape == theirs.shape else np.inf
            differences[name] = max(differences.get(name, 0.0), gap if np.isfinite(gap) else np.inf)
    return differences


def missing_lines(page: Page, reading: Reading) -> list[str]:
    """Return the page's lines that the reading lacks; spaces do not count, as the recogniser drops some."""
    seen = "\n".join(line.replace(" ", "") for line in reading.text)
    return [line for line in page.lines if line.replace(" ", "") not in seen]


def report(page: Page, theirs: Reading, ours: Reading) -> bool:
    """Print one page's text and times; return whether all of its text was recognised."""
    missing = missing_lines(page, ours)
    print(f"{page.width} x {page.height} pixels:")
    for line in ours.text:
        print(f"    {line}")
    for line in missing:
        print(f"    NOT RECOGNISED: {line}")
    if ours.text != theirs.text:
        print(f"    ONNX Runtime read: {' | '.join(theirs.text)}")
    print(f"    onnxruntime {1e3 * theirs.seconds:7.1f} ms    tilewright {1e3 * ours.seconds:7.1f} ms"
          f"    ({len(ours.calls)} inferences)")  # fmt: skip
    return not missing


def main() -> int:
    """Run the demo; returns the process's exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="threads of both engines (default: 2)")
    parser.add_argument("--repeat", type=int, default=3, help="timed runs of each picture (default: 3)")
    parser.add_argument("--save", type=Path, help="also write the pictures as PNG files into this folder")
    options = parser.parse_args()
    if options.save is not None:
        options.save.mkdir(parents=True, exist_ok=True)
        for page in PAGES:
            Image.fromarray(page.draw()).save(options.save / f"{page.width}x{page.height}.png")

    print(f"RapidOCR on ONNX Runtime {onnxruntime.__version__} and on Tilewright, {options.threads} threads")
    print("three models are loaded by ONNX Runtime, then the pages are read:")
    start_theirs, theirs = read_pages(onnxruntime.InferenceSession, options.threads, options.repeat)
    time.sleep(PAUSE_SECONDS)  # worker threads spin for a while after a call and would disturb the next engine
    print("three models are compiled by Tilewright, two to six minutes on two idle cores, then the pages are read:")
    start_ours, ours = read_pages(
        partial(tilewright.InferenceSession, progress=ProgressDots()), options.threads, options.repeat
    )
    print(f"three models loaded in {start_theirs:.2f} s by onnxruntime, compiled in {start_ours:.2f} s by tilewright")
    read = [report(*rows) for rows in zip(PAGES, theirs, ours, strict=True)]
    differences = max_difference(ours, options.threads)
    print("largest difference of outputs, same inputs:")
    for name, difference in differences.items():
        print(f"    {name:34s} {difference:.2e}")
    agree = max(differences.values(), default=np.inf) <= MAX_DIFFERENCE
    shapes = {tuple(feed.shape) for reading in ours for call in reading.calls for feed in call.feeds.values()}
    print(f"{len(shapes)} different input shapes, one compilation per model")
    print("all text recognised" if all(read) else "SOME TEXT WAS NOT RECOGNISED")
    if not agree:
        print(f"THE OUTPUTS DIFFER by more than {MAX_DIFFERENCE:.0e}")
    return 0 if all(read) and agree else 1


if __name__ == "__main__":
    sys.exit(main())
