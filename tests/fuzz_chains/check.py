"""One random chain of contractions: refused for a reason, or fused, verified and computed natively like its oracle."""

from dataclasses import dataclass

import numpy as np
from tests.optimize.chains import Chain, task_of

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.expr.nodes import Expr
from tilewright.lower.skip_masked_tiles import skip_masked_tiles
from tilewright.machine.shipped import machine_named
from tilewright.optimize.chains.chain_tree import chain_tree
from tilewright.optimize.chains.expression import ChainTiling
from tilewright.optimize.chains.extract_chain import extract_chain
from tilewright.optimize.chains.pruning import ChainSpace
from tilewright.optimize.chains.search import MODEL_ALONE, search
from tilewright.verify.verifier import verify

TARGETS = ("x86-64-v4", "x86-64-v4", "x86-64-v3")
MASKS = ("none", "keys", "full", "boolean", "causal", "window")
TILINGS_PER_CHAIN = 6
"""Tilings that are drawn for a chain until one has a tree."""


@dataclass(frozen=True)
class Outcome:
    """What became of a random chain.

    Attributes:
        chain: what it computes, with the sizes of its symbols.
        tiling: the loops of the fused kernel; None where all were refused.
        refusals: why tilings were refused, or the chain.
    """

    chain: str
    tiling: ChainTiling | None
    refusals: tuple[str, ...]


def check(seed: int) -> Outcome:
    """Draws a chain, and tilings out of the space that is searched; the first that has a tree must compute the same.

    Raises:
        VerifyError: loops of the fused kernel, or those with masked tiles skipped, are not well-formed.
        MismatchError: it computes something else.
    """
    rng = np.random.default_rng([seed])
    chain, symbols = random_chain(rng)
    shown = f"{chain} {symbols}"
    target = TARGETS[int(rng.integers(len(TARGETS)))]
    machine = machine_named(target)
    task = task_of(tw.create_schedule(chain.tensor()).func, target)
    try:
        space = ChainSpace.of(extract_chain(task.func, task.samples), machine)
        ranked = search(space, MODEL_ALONE).ranked if space.models else ()
    except ScheduleError as error:
        return Outcome(shown, None, (str(error),))
    refusals: list[str] = []
    for _ in range(TILINGS_PER_CHAIN if ranked else 0):
        tiling = ranked[int(rng.integers(len(ranked)))].tiling
        s = tw.create_schedule(chain.tensor())
        try:
            s.apply_tree(chain_tree(task_of(s.func, target), tiling, machine))
        except ScheduleError as error:
            refusals.append(str(error))
            continue
        verify(skip_masked_tiles(s.func))
        s.check(symbols or None, target=target, threads=2, seed=seed)
        return Outcome(shown, tiling, tuple(refusals))
    return Outcome(shown, None, tuple(refusals))


def random_chain(rng: np.random.Generator) -> tuple[Chain, dict[str, int]]:
    """A chain of two to four contractions with the sizes of its symbols."""

    def size() -> int:
        common = (1, 2, 3, 7, 8, 16, 17, 24, 33, 40, 64)
        return int(rng.choice(common)) if rng.random() < 0.4 else int(rng.integers(1, 120))

    rows, sizes = size(), [size() for _ in range(int(rng.choice([3, 3, 3, 4, 4, 5])))]
    softmax = bool(rng.random() < 0.6)
    if softmax:
        sizes[1] = int(rng.integers(1, 260))
    symbols: dict[str, int] = {}
    columns: list[Expr | int] = list(sizes)
    row_size: Expr | int = rows
    if rng.random() < 0.25:
        symbols["T"], columns[1] = sizes[1], tw.symbol("T", 1, 300)
    if rng.random() < 0.25:
        symbols["R"], row_size = rows, tw.symbol("R", 1, 300)
    batch = tuple(int(n) for n in rng.integers(1, 4, int(rng.integers(3))))
    transposed, activation, epilogue, heads_inside, prologue = (bool(x) for x in rng.random(5) < 0.4)
    mask = str(rng.choice(MASKS))
    return (
        Chain(batch, row_size, tuple(columns), softmax, mask, transposed, activation, epilogue, heads_inside, prologue),
        symbols,
    )
