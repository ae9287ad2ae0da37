"""Questions of coverage that the algebra of images leaves open, asked again in other ways.

First over fused variables (`fused.py`), then by running through all iterations where they are few (`enumerated.py`,
`history.py`).
"""

from collections.abc import Callable, Iterator, Sequence

from tilewright.loops.enumerated import covered
from tilewright.loops.fused import fused
from tilewright.loops.history import counted
from tilewright.loops.interpret import accumulated
from tilewright.loops.nest import Finding, Nest
from tilewright.loops.siblings import kinship

Findings = list[tuple[Nest, Finding]]

MOST_QUESTIONS = 6
"""Groups of blocks of one function whose iterations are run through: each takes up to about 0.2 s."""


def settled(check: Callable[[Sequence[Nest]], Findings], nests: Sequence[Nest], whole: bool) -> Iterator[Finding]:
    """The findings of a check that stand.

    Args:
        check: what algebra finds about some of the blocks, each with one of the blocks that it is about.
        nests: all blocks of the function.
        whole: whether the blocks must cover their whole domains; else what they accumulate is in question.
    """
    found = check(nests)
    if not found:
        return
    wrong = dict.fromkeys(_key(nest) for nest, _ in found)
    again = fused(nests)
    if any(a is not b for a, b in zip(nests, again, strict=True)):
        still = {_key(nest) for nest, _ in check(again)}
        right = {_key(a) for a, b in zip(nests, again, strict=True) if _key(b) not in still}
        wrong = {key: None for key in wrong if key not in right}
    for key in list(wrong)[:MOST_QUESTIONS]:
        if _enumerated([n for n in nests if _key(n) == key], nests, whole):
            del wrong[key]
    yield from (finding for nest, finding in found if _key(nest) in wrong)


def _key(nest: Nest) -> object:
    return kinship(nest, nest.block.iters)


def _enumerated(kin: Sequence[Nest], nests: Sequence[Nest], whole: bool) -> bool:
    """Whether running through all iterations shows that blocks of one domain are right."""
    if accumulated(kin[0].block.body) is not None:
        return counted(kin, nests, whole)
    return covered(kin)
