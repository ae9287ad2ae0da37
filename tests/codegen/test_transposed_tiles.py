"""Columns of tiles are transposed in registers: the right elements, nothing out of bounds, no insertions."""

import re

import numpy as np
import pytest
from tests.codegen.native import TARGETS, check
from tests.codegen.test_strided_loads import Numbers, Shuffles

from tilewright.codegen import emit_llvm
from tilewright.codegen.module import assembly
from tilewright.codegen.transposed_tiles import transpose_blocks
from tilewright.loops.parser import parse
from tilewright.machine import Target

TRANSPOSITION = """
func transposition(X: KIND[3, ROWS, COLUMNS], Y: KIND[3, COLUMNS, ROWS]):
    for p in parallel(3):
        for j in serial(COLUMN_TILES):
            for i in serial(ROW_TILES):
                for u in unrolled(TILE):
                    for l in vectorized(LANES):
                        block Y(g: 3 = p, a: COLUMNS = j * TILE + u, b: ROWS = i * LANES + l) where CONDITION:
                            Y[g, a, b] = VALUE
"""


def transposition(
    rows: int, columns: int, lanes: int = 16, tile: int = 16, kind: str = "float32", value: str = "X[g, b, a]"
) -> str:
    """The text of transpositions of matrices in tiles of `lanes` rows and `tile` columns."""
    numbers = {"ROW_TILES": -(-rows // lanes), "COLUMN_TILES": -(-columns // tile), "ROWS": rows, "COLUMNS": columns,
               "TILE": tile, "LANES": lanes}  # fmt: skip
    conditions = [f"j * {tile} + u < {columns}"] * (columns % tile > 0)
    conditions += [f"i * {lanes} + l < {rows}"] * (rows % lanes > 0)
    words = {"KIND": kind, "VALUE": value, "CONDITION": " and ".join(conditions), **numbers}
    text = TRANSPOSITION if conditions else TRANSPOSITION.replace(" where CONDITION", "")
    for word, replacement in words.items():
        text = text.replace(word, str(replacement))
    return text


def arrays(text: str, kind: str = "float32") -> dict[str, np.ndarray]:
    """A different number for every element."""
    params = parse(text).params
    shapes = {b.name: tuple(int(str(n)) for n in b.shape) for b in params}
    return {name: np.arange(np.prod(shape)).reshape(shape).astype(kind) for name, shape in shapes.items()}


@pytest.mark.parametrize(("lanes", "count", "bits"), [
    (16, 16, 32), (16, 8, 32), (16, 4, 32), (8, 8, 32), (8, 4, 32), (4, 4, 32), (8, 8, 64), (8, 4, 64), (4, 4, 64),
    (16, 2, 32), (2, 2, 64),
])  # fmt: skip
def test_blocks_of_every_size_are_transposed(lanes: int, count: int, bits: int) -> None:
    rows = [Numbers(range(r * lanes, (r + 1) * lanes)) for r in range(count)]
    columns = transpose_blocks(Shuffles(), rows, lanes, bits)  # pyright: ignore[reportArgumentType]
    for c, column in enumerate(columns):
        expected = [r * lanes + p + c for p in range(0, lanes, count) for r in range(count)]
        assert column.numbers == expected  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["float32", "float64", "int32", "int64", "float16", "int8"])
@pytest.mark.parametrize(
    ("rows", "columns", "lanes", "tile"),
    [(32, 32, 16, 16), (37, 53, 16, 16), (5, 100, 16, 16), (100, 5, 16, 8), (64, 21, 32, 7), (33, 18, 8, 4)],
)
def test_transpositions_are_correct_and_in_bounds(
    target: str, kind: str, rows: int, columns: int, lanes: int, tile: int
) -> None:
    text = transposition(rows, columns, lanes, tile, kind)
    check(parse(text), arrays(text, kind), target=target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("value", [
    "X[g, b, a] * X[g, b, a] + X[0, b, a]", "select(X[g, b, a] > 100.0, X[g, b, a], 0.0)",
    "select(a < 20, X[g, b, a], 1.0)", "X[g, b, a] + X[g, 0, b % 5]", "select(b < 30, X[g, b, a], 0.0)",
    "select(b + g < 35, X[g, b, a] + X[0, b, a], 2.0)", "select(g < 2, X[g, b, a], 1.0)",
    "select(b < 33 and g < 2, X[g, b, a], 0.0)", "select(b < 30, X[g, b, a], X[g, b - 30, a])",
])  # fmt: skip
def test_values_of_transposed_loads(target: str, value: str) -> None:
    text = transposition(37, 53, value=value)
    check(parse(text), arrays(text), target=target)


@pytest.mark.parametrize("target", TARGETS)
def test_a_tile_that_is_written_meanwhile_is_not_kept(target: str) -> None:
    """Every iteration adds to the row that the next one reads."""
    text = """
func prefix(X: float32[16, 20], Y: float32[16]):
    for u in unrolled(16):
        for l in vectorized(16):
            block X(a: 16 = u, b: 16 = l):
                X[b, a + 1] = X[b, a + 1] + X[b, a]
"""
    check(parse(text), {"X": np.ones((16, 20), np.float32), "Y": np.zeros(16, np.float32)}, target=target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [6, 14, 16])
def test_tiles_on_the_stack(target: str, rows: int) -> None:
    """An epilogue across the lanes of accumulators."""
    text = f"""
func across(X: float32[{rows}, 32], Y: float32[32, {rows}]):
    alloc T: float32[{rows}, 32] in stack
    for r in unrolled({rows}):
        for l in vectorized(32):
            block T(a: {rows} = r, b: 32 = l):
                T[a, b] = X[a, b] * 2.0
    for u in unrolled(32):
        for m in vectorized({rows}):
            block Y(c: 32 = u, d: {rows} = m):
                Y[c, d] = max(T[d, c], 5.0)
"""
    check(parse(text), arrays(text), target=target)


def instructions(text: str, target: str) -> list[str]:
    """The instructions of the generated code."""
    lines = assembly(emit_llvm([parse(text)], [], Target.parse(target)), Target.parse(target)).splitlines()
    return [line.strip() for line in lines if re.match(r"\s+[a-z]", line)]


def count(pattern: str, lines: list[str]) -> int:
    """The instructions that match."""
    return sum(bool(re.match(pattern, x)) for x in lines)


ELEMENTS = r"v?insertps|v?pinsr|v?movss|v?gather|ld1\s+\{.*\}\[|ins\s|mov\s+v.*\[.*v.*\["
"""Instructions that move single elements to or from vectors."""


@pytest.mark.parametrize(("target", "lanes"), [("x86-64-v4", 16), ("x86-64-v3", 8), ("x86-64", 4)])
def test_shuffles_of_square_tiles(target: str, lanes: int) -> None:
    """As many rows as a register has lanes: for each stored vector log2(lanes) shuffles, and no element by itself."""
    counts = instructions(transposition(8 * lanes, 8 * lanes, lanes, lanes), target)
    stores = count(r"v?movup[sd]\s+%[xyz]mm\d+, .*\(", counts)
    shuffles = count(r"v?(unpck|perm|shuf|insertf|blend|mov[hl]{2})", counts)
    assert stores >= lanes
    assert shuffles <= np.log2(lanes) * stores
    assert not count(ELEMENTS, counts)


def test_square_tiles_on_aarch64() -> None:
    counts = instructions(transposition(32, 32, 4, 4), "aarch64")
    assert count(r"(zip|uzp|trn)[12]", counts) >= 8
    assert not count(ELEMENTS, counts)


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3", "x86-64", "aarch64"])
def test_columns_beyond_whole_tiles_are_not_inserted_one_by_one(target: str) -> None:
    """53 columns in tiles of 16: the last tile has five, read in two overlapping pieces."""
    assert not count(ELEMENTS, instructions(transposition(64, 53), target))


@pytest.mark.parametrize("condition", ["b < 20", "b + g < 30"])
def test_columns_that_are_read_in_all_iterations_or_none_are_transposed(condition: str) -> None:
    """As those of the padded last panel of a packed operand; a border along the columns is read element by element."""
    text = transposition(64, 64, value=f"select({condition}, X[g, b, a], 0.0)")
    assert not count(ELEMENTS, instructions(text, "x86-64-v4"))
    assert count(ELEMENTS, instructions(text.replace(condition, "a + b < 90"), "x86-64-v4"))
