"""Questions of coverage that the algebra of images leaves open, asked again in other ways.

First over fused variables (`fused.py`), then by running through all iterations where they are few (`enumerated.py`,
`history.py`).
"""

from collections.abc import Callable, Iterator, Sequence

from tilewright.loops.accumulation import match_accumulation
from tilewright.loops.block_context import BlockContext
from tilewright.verify.diagnostics import Diagnostic
from tilewright.verify.enumerated_coverage import is_covered
from tilewright.verify.enumerated_reduction import is_counted_once
from tilewright.verify.fused_iters import fuse_iters
from tilewright.verify.peeled_blocks import statement_key

BlockDiagnostics = list[tuple[BlockContext, Diagnostic]]

MAX_ENUMERATED_GROUPS = 6
"""Groups of blocks of one function whose iterations are run through: each takes up to about 0.2 s."""


def remaining_diagnostics(
    check: Callable[[Sequence[BlockContext]], BlockDiagnostics], nests: Sequence[BlockContext], whole: bool
) -> Iterator[Diagnostic]:
    """The findings of a check that stand.

    Args:
        check: what algebra finds about some of the blocks, each with one of the blocks that it is about.
        nests: all blocks of the function.
        whole: whether the blocks must cover their whole domains; else what they accumulate is in question.
    """
    found = check(nests)
    if not found:
        return
    wrong = dict.fromkeys(_statement_key(nest) for nest, _ in found)
    again = fuse_iters(nests)
    if any(a is not b for a, b in zip(nests, again, strict=True)):
        still = {_statement_key(nest) for nest, _ in check(again)}
        right = {_statement_key(a) for a, b in zip(nests, again, strict=True) if _statement_key(b) not in still}
        wrong = {key: None for key in wrong if key not in right}
    for key in list(wrong)[:MAX_ENUMERATED_GROUPS]:
        if _is_proved_by_enumeration([n for n in nests if _statement_key(n) == key], nests, whole):
            del wrong[key]
    yield from (finding for nest, finding in found if _statement_key(nest) in wrong)


def _statement_key(nest: BlockContext) -> object:
    return statement_key(nest, nest.block.iters)


def _is_proved_by_enumeration(kin: Sequence[BlockContext], nests: Sequence[BlockContext], whole: bool) -> bool:
    """Whether running through all iterations shows that blocks of one domain are right."""
    if match_accumulation(kin[0].block.body) is not None:
        return is_counted_once(kin, nests, whole)
    return is_covered(kin)
