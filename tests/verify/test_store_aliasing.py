"""Covered stores: what is proved to be covered is stored, and tiles are proved."""

import numpy as np
import pytest

from tilewright.loops.block_context import BlockContext
from tilewright.loops.ir import Block, walk
from tilewright.loops.parser import parse
from tilewright.verify.peeled_blocks import count_shared_loops
from tilewright.verify.store_aliasing import is_covered_by_inversion

TEXT = """
func f(A: float32[N], X: int64[1], T: float32[1000]; N: 1..1000):
    for l in serial({times}):
        {first}
        {then}
"""

STORE = """
        for o{n} in serial({outer}):
            for i{n} in serial({inner}):
                block {n}(v{n}: 1000 = {at}) where {limit}:
                    T[v{n} - {less}] = 0.0
"""

TAIL = {
    "n": "a", "outer": "2", "inner": "16", "at": "l * 32 + o{n} * 16 + i{n}", "limit": "l * 32 + o{n} * 16 + i{n} < N",
    "less": "l * 32 - o{n} * 16",
}  # fmt: skip


def store(n: str, **changed: str) -> str:
    """A block of tiles in the loop over larger tiles, of which the last one is not whole."""
    return STORE.format(**{k: x.format(n=n) for k, x in {**TAIL, **changed, "n": n}.items()})


def nests(first: str, then: str, times: str = "(N + 31) // 32") -> list[BlockContext]:
    """The blocks of a program with two parts."""
    func = parse(TEXT.format(times=times, first=first.strip(), then=then.strip()))
    return [BlockContext.of(s, loops) for s, loops in walk(func.body) if isinstance(s, Block)]


@pytest.mark.parametrize(
    ("changed", "right"),
    [
        ({}, True),
        ({"outer": "3"}, True),
        ({"inner": "24"}, True),
        ({"outer": "N"}, True),
        ({"inner": "8"}, False),
        ({"outer": "N - 1"}, False),
        ({"limit": "l * 32 + o{n} * 16 + i{n} < N - 1"}, False),
        ({"limit": "l * 32 + o{n} * 16 + i{n} < N and 1 <= o{n}"}, False),
        ({"less": "l * 32 - o{n} * 16 + 1"}, False),
        ({"less": "o{n} * 16"}, False),
    ],
)
def test_partial_last_tiles_are_covered(changed: dict[str, str], right: bool) -> None:
    a, b = nests(store("a"), store("b", **changed))
    assert is_covered_by_inversion(a, b, count_shared_loops(a, b)) == right


def test_loaded_indices_are_not_covered() -> None:
    limit = "l * 32 + o{n} * 16 + i{n} < N and X[0] < 5"
    a, b = nests(store("a", limit=limit), store("b", limit=limit))
    assert not is_covered_by_inversion(a, b, count_shared_loops(a, b))


SUM = """
        for k in serial(4):
            for j in serial(8):
                block b(vb: 1000 = l * 8 + j, reduce r: 4 = {point}) where {limit}:
                    init T[vb] = 0.0
                    T[vb] = T[vb] + A[r]
"""


@pytest.mark.parametrize(
    ("point", "limit", "right"),
    [("k", "j < 8", True), ("k", "1 <= j + k", False), ("3 - k", "j < 8", False), ("k", "1 <= k", False)],
)
def test_an_init_stores_at_the_first_reduction_point(point: str, limit: str, right: bool) -> None:
    first = store("a", outer="1", inner="8", at="l * 8 + i{n} + o{n}", limit="0 <= i{n}", less="0")
    a, b = nests(first, SUM.format(point=point, limit=limit), "100")
    assert is_covered_by_inversion(a, b, count_shared_loops(a, b)) == right


def random_store(n: str, rng: np.random.Generator) -> str:
    """Two loops that count somehow, of which some iterations may be left out."""
    at = f"l * {rng.choice([0, 4, 8])} + o{n} * {rng.choice([0, 1, 2, 4])} + i{n} * {rng.choice([1, 1, 2])}"
    limit = str(rng.choice(["0 <= l", f"{at} < {rng.integers(5, 40)}", f"{rng.integers(0, 3)} <= o{n} + i{n}"]))
    less = str(rng.choice(["0", "l * 4", f"o{n} * 4", f"o{n} * 2 - 1"]))
    outer, inner = (str(rng.choice(["1", "2", "4", "l + 1", "5 - l"])) for _ in range(2))
    return store(n, outer=outer, inner=inner, at=at, limit=limit, less=less)


def elements(nest: BlockContext) -> dict[int, set[int]]:
    """What a block stores, per iteration of the outermost loop, by running through its loops."""
    names = [x.var.name for x in nest.loops]
    index = eval(f"lambda {', '.join(names)}: {nest.over_loops(nest.block.body.indices[0])}")
    meets = eval(f"lambda {', '.join(names)}: {nest.block.predicate}")
    sizes = [eval(f"lambda {', '.join(names[:k])}: {x.extent}") for k, x in enumerate(nest.loops)]
    by_iteration: dict[int, set[int]] = {}
    for outer in range(sizes[0]()):
        every = ((outer, o, i) for o in range(sizes[1](outer)) for i in range(sizes[2](outer, o)))
        by_iteration[outer] = {index(*at) for at in every if meets(*at)}
    return by_iteration


def test_proved_covers_are_right() -> None:
    proved = 0
    for seed in range(1500):
        rng = np.random.default_rng(seed)
        a, b = nests(random_store("a", rng), random_store("b", rng), str(rng.integers(1, 6)))
        mine, theirs = elements(a), elements(b)
        answer = is_covered_by_inversion(a, b, 1)
        assert not answer or all(mine[k] <= theirs[k] for k in mine), f"{a.text}\n{b.text}"
        proved += answer
    assert proved > 80
