"""Edge tiles: peeled last iterations and unswitched masks; full tiles have no masks, and vectors without active lanes
are not computed.
"""

import numpy as np
import pytest
from tests.codegen.native import TARGETS, check

from tilewright.codegen import assembly, emit_llvm
from tilewright.loops.parser import parse
from tilewright.machine import Target

WINDOW = """
func window(X: float32[5, W + 2], Y: float32[3, W]SIZES):
    alloc T: float32[3, 16] in register
    for o in serial(TILES):
        for h0 in unrolled(3):
            for l0 in vectorized(16):
                block start(a0: 3 = h0, b0: W = o * 16 + l0) where o * 16 + l0 < W:
                    T[a0, b0 - o * 16] = 0.0
        for r in unrolled(3):
            for s in unrolled(3):
                for h in unrolled(3):
                    for l in vectorized(16):
                        block sum(a: 3 = h, b: W = o * 16 + l, reduce u: 3 = r, reduce v: 3 = s) where o * 16 + l < W:
                            T[a, b - o * 16] = T[a, b - o * 16] + X[a + u, b + v]
        for h1 in unrolled(3):
            for l1 in vectorized(16):
                block end(a1: 3 = h1, b1: W = o * 16 + l1) where o * 16 + l1 < W:
                    Y[a1, b1] = T[a1, b1 - o * 16]
"""

MOVED = """
func moved(X: float32[4, 3, W], Y: float32[3, 4, W]SIZES):
    for o in serial(TILES):
        for i in serial(4):
            for l in vectorized(8):
                block Y(a: 3 = 1, b: 4 = i, c: W = o * 8 + l) where o * 8 + l < W:
                    Y[a, b, c] = X[b, a, c] * 2.0
"""


def source(text: str, columns: int, symbolic: bool) -> str:
    """A function over some columns, a constant number of them or a symbol."""
    width, sizes = ("N", "; N: 1..500") if symbolic else (str(columns), "")
    lanes = 16 if text == WINDOW else 8
    tiles = f"(N + {lanes - 1}) // {lanes}" if symbolic else str(-(-columns // lanes))
    return text.replace("W", width).replace("SIZES", sizes).replace("TILES", tiles)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("columns", [1, 15, 16, 17, 40, 56, 64])
@pytest.mark.parametrize("text", [WINDOW, MOVED], ids=["window", "moved"])
def test_tails_are_correct(text: str, columns: int, symbolic: bool, target: str) -> None:
    func = parse(source(text, columns, symbolic))
    rng, sizes = np.random.default_rng(columns), {"N": columns} if symbolic else {}
    window, moved = ((5, columns + 2), (3, columns)), ((4, 3, columns), (3, 4, columns))
    shapes = window if text == WINDOW else moved
    arrays = {n: rng.standard_normal(s).astype(np.float32) for n, s in zip("XY", shapes, strict=True)}
    check(func, arrays, sizes, target)


def stores(text: str, columns: int, symbolic: bool, target: str) -> tuple[int, int]:
    """Counts of additions in all copies of a window, or of unmasked vector stores; and of masked stores."""
    lines = emit_llvm([parse(source(text, columns, symbolic))], [], Target.parse(target)).splitlines()
    plain = "fadd" if text == WINDOW else "store <8 x float>"
    return sum(plain in x for x in lines), sum("call" in x and "masked.store" in x for x in lines)


def test_last_of_constant_many_tiles_is_peeled() -> None:
    # 27 additions for a whole tile and 27 for the last one, of 8 lanes: a whole vector of 256 bits
    for target in ("x86-64-v3", "x86-64-v4"):
        assert stores(WINDOW, 56, False, target) == (54, 0)
        assert stores(WINDOW, 62, False, target) == (54, 3)
    for target in ("x86-64-v3", "x86-64-v4"):
        assert stores(WINDOW, 64, False, target) == (27, 0)


def test_symbolic_tile_loops_are_unswitched_where_masks_are_slow() -> None:
    # two vectors of AVX2 in each of three rows
    assert stores(WINDOW, 56, True, "x86-64-v3") == (54, 6)
    assert stores(WINDOW, 56, True, "x86-64-v4") == (27, 3)


def test_single_masked_store_is_unswitched() -> None:
    for target in ("x86-64-v3", "x86-64-v4"):
        assert stores(MOVED, 22, False, target) == (1, 1)
        assert stores(MOVED, 20, False, target) == (1, 0), "a whole vector of 128 bits"
    assert stores(MOVED, 20, True, "x86-64-v3") == (1, 1)
    assert stores(MOVED, 20, True, "x86-64-v4") == (0, 1)
    assert stores(MOVED, 24, False, "x86-64-v3") == (1, 0)


def test_masks_of_the_peeled_iteration_are_constants() -> None:
    chosen = Target.parse("x86-64-v3")
    text = {n: assembly(emit_llvm([parse(source(WINDOW, n, False))], [], chosen), chosen) for n in (52, 54, 56)}
    # 56 is 7 vectors of 8: of the two in the last tile one is stored as a whole and one not at all
    assert "vmaskmov" not in text[56]
    assert "vmovups" in text[56]
    # and of 52 half of one, a whole vector of 128 bits
    assert "vmaskmov" not in text[52]
    # of 54 one is partial: 5 rows are read at 3 places each, and 3 are stored
    assert text[54].count("vmaskmov") == 18


ACCUMULATED = """
func accumulated(X: float32[4, 44], Y: float32[4, W]):
    alloc T: float32[24] in register
    for i in parallel(4):
        for whole in parallel(1):
            for o in serial(2):
                for a in vectorized(24):
                    block start(x: W = whole * 48 + o * 24 + a) where whole * 48 + o * 24 + a < W:
                        T[x - whole * 48 - o * 24] = 0.0
                for r in serial(4):
                    for b in vectorized(24):
                        block sum(y: W = whole * 48 + o * 24 + b, reduce k: 4 = r) where whole * 48 + o * 24 + b < W:
                            T[y - whole * 48 - o * 24] = T[y - whole * 48 - o * 24] + X[k, y] * X[k, y]
                for c in vectorized(24):
                    block end(v: 4 = i, z: W = whole * 48 + o * 24 + c) where whole * 48 + o * 24 + c < W:
                        Y[v, z] = T[z - whole * 48 - o * 24]
"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [44, 30, 27])
def test_tail_accumulators_stay_in_registers(target: str, columns: int) -> None:
    """Three vectors, the last ones masked, in a parallel loop of one iteration."""
    func = parse(ACCUMULATED.replace("W", str(columns)))
    rng = np.random.default_rng(columns)
    arrays = {"X": rng.standard_normal((4, 44)).astype(np.float32), "Y": np.full((4, columns), 9, np.float32)}
    check(func, arrays, target=target)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("columns", ["44", "43", "27", "N"])
def test_only_results_have_masked_stores(target: str, columns: str) -> None:
    symbols = "; N: 25..44" if columns == "N" else ""
    text = ACCUMULATED.replace("W]):", "W]SYMBOLS):").replace("SYMBOLS", symbols)
    written = emit_llvm([parse(text.replace("W", columns))], [], Target.parse(target))
    masked = [x for x in written.splitlines() if "call" in x and "masked.store" in x]
    # symbolic: one per vector of a tile, 8 + 8 + 8 or 16 + 8 lanes; otherwise one for the last active one, and none
    # where its active lanes fill a narrower register: four of 44 columns
    symbolic = 3 if target == "x86-64-v3" else 2
    assert len(masked) == {"44": 0, "43": 1, "27": 1, "N": symbolic}[columns]


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_single_parallel_iteration_is_a_constant(target: str) -> None:
    """The variable is a constant in conditions, and not part of the coalesced nest that threads share."""
    once = ACCUMULATED.replace("W", "44")
    texts = [
        emit_llvm([parse(x)], [], Target.parse(target)) for x in (once, once.replace("parallel(1)", "parallel(2)"))
    ]
    assert ["nest.end" in text for text in texts] == [False, True]


FAR = """
func far(X: float32[2000], Y: float32[64]):
    alloc T: float32[64] in register
    alloc U: float32[64] in register
    for o0 in serial(4):
        for l0 in vectorized(16):
            block before(p0: 64 = o0 * 16 + l0):
                U[p0] = X[p0 + 64]
    for o in serial(100):
        for l in vectorized(24):
            block first(p: 64 = o * 24 + l) where o * 24 + l < 61:
                T[p] = X[p]
    for m in serial(4):
        for k in vectorized(16):
            block after(p2: 64 = m * 16 + k) where m * 16 + k < 61:
                Y[p2] = T[p2] + U[p2]
"""
"""Of a hundred tiles of 24 lanes three are in the buffer, and the others far out of bounds."""


@pytest.mark.parametrize("target", TARGETS)
def test_tiles_out_of_bounds_are_not_stored(target: str) -> None:
    rng = np.random.default_rng(1)
    arrays = {"X": rng.standard_normal(2000).astype(np.float32), "Y": np.full(64, 9, np.float32)}
    check(parse(FAR), arrays, target=target)


@pytest.mark.parametrize(("target", "vectors"), [("x86-64-v3", 3), ("x86-64-v4", 2)])
def test_tiles_with_large_offsets_keep_masks(target: str, vectors: int) -> None:
    """Those of the tile's vectors, and that of the result."""
    lines = emit_llvm([parse(FAR)], [], Target.parse(target)).splitlines()
    assert sum("call" in x and "masked.store" in x for x in lines) == vectors + 1


BORDER = """
func border(X: float32[H, W], Y: float32[H + 2, W + 2]; H: 1..99, W: 1..99):
    for i in serial(H + 2):
        for o in serial((W + 2 + 7) // 8):
            for l in vectorized(8):
                block Y(a: H + 2 = i, b: W + 2 = o * 8 + l) where o * 8 + l < W + 2:
                    Y[a, b] = select(1 <= a and a < H + 1 and 1 <= b and b < W + 1, X[a - 1, b - 1], 0.0)
"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [1, 5, 6, 7, 8, 13, 14, 40])
def test_borders_are_correct(columns: int, target: str) -> None:
    rng = np.random.default_rng(columns)
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, columns), (5, columns + 2)))
    check(parse(BORDER), {"X": x, "Y": y}, {"H": 3, "W": columns}, target)


def vectors(text: str) -> dict[str, int]:
    """Counts of loads and stores of eight floats, by kind."""
    lines = text.splitlines()
    kinds = {"load": "= load <8 x float>", "masked load": "masked.load.v8f32", "store": "store <8 x float>",
             "masked store": "masked.store.v8f32"}  # fmt: skip
    return {k: sum(part in x and not x.startswith("declare") for x in lines) for k, part in kinds.items()}


def test_interior_loads_have_no_masks() -> None:
    """Where masks are slow, one branch before a tile tests whether all lanes are in bounds; rows out of bounds load
    nothing."""
    counts = vectors(emit_llvm([parse(BORDER)], [], Target.parse("x86-64-v3")))
    # per interior row: one tile without any mask, one with masked loads only, the last one fully masked
    assert counts["load"] == 1
    assert counts["masked load"] == 2
    assert counts["masked store"] == 2, "of the last tile, of rows inside and outside"


JOINED = """
func joined(X: float32[4, N], Z: float32[4, N], Y: float32[4, 2 * N]; N: 1..99):
    for i in parallel(4):
        for o in parallel((2 * N + 7) // 8):
            for l in vectorized(8):
                block Y(a: 4 = i, b: 2 * N = o * 8 + l) where o * 8 + l < 2 * N:
                    Y[a, b] = select(b < N, X[a, b], Z[a, b - N])
"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [1, 4, 7, 8, 12, 33])
def test_concatenated_rows_are_correct(columns: int, target: str) -> None:
    rng = np.random.default_rng(columns)
    x, y, z = (rng.standard_normal((4, n)).astype(np.float32) for n in (columns, 2 * columns, columns))
    check(parse(JOINED), {"X": x, "Y": y, "Z": z}, {"N": columns}, target)


def test_load_masks_do_not_unswitch_masked_stores() -> None:
    """Tiles within the second of two concatenated rows are stored without masks, too."""
    counts = vectors(emit_llvm([parse(JOINED)], [], Target.parse("x86-64-v3")))
    assert counts["masked store"] == 1
    assert counts["store"] == 2


def test_shared_subexpressions_are_visited_once() -> None:
    body = "X[b] * 2.0"
    for _ in range(40):
        body = f"pow({body}, 2.0)"
    text = f"""
func squares(X: float32[N], Y: float32[N]; N: 1..99):
    for o in parallel((N + 7) // 8):
        for l in vectorized(8):
            block Y(b: N = o * 8 + l) where o * 8 + l < N:
                Y[b] = {body}
"""
    assert emit_llvm([parse(text)], [], Target.parse("x86-64-v3")).count("fmul <8 x float>") < 400


@pytest.mark.parametrize("kind", ["serial", "parallel"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("levels", [2, 3, 5])
def test_nested_loops_of_one_condition_are_all_peeled(levels: int, target: str, kind: str) -> None:
    """One copy per level, for the last iteration of the enclosing levels, and one for all iterations before a last
    one."""
    size = 16 * 2**levels - 5
    at = " + ".join([*(f"o{k} * {16 * 2 ** (levels - 1 - k)}" for k in range(levels)), "l"])
    loops = "".join(f"{'    ' * (k + 1)}for o{k} in {kind}(2):\n" for k in range(levels))
    inside = "    " * (levels + 1)
    func = parse(f"""
func levels(X: float32[{size}], Y: float32[{size}]):
{loops}{inside}for l in vectorized(16):
{inside}    block Y(v: {size} = {at}) where {at} < {size}:
{inside}        Y[v] = X[v] * 2.0
""")
    if target == "x86-64-v4":
        assert emit_llvm([func], [], Target.parse(target)).count("fmul") == levels + 1
    x = np.random.default_rng(levels).standard_normal(size).astype(np.float32)
    check(func, {"X": x, "Y": np.full(size, 9, np.float32)}, target=target)
