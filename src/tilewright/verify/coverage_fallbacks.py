"""Fallbacks for coverage that iteration maps cannot prove: fused variables first, then enumeration.

`fused_iters.py` repeats the proof over fused iteration variables; `enumerated_coverage.py` and
`enumerated_reduction.py` enumerate all iterations where these are few.
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
"""Diagnostics, each with a block that it is about."""

MAX_ENUMERATED_GROUPS = 6
"""Groups of peeled copies in one function whose iterations are enumerated: each takes up to about 0.2 s."""


def remaining_diagnostics(
    check: Callable[[Sequence[BlockContext]], BlockDiagnostics], contexts: Sequence[BlockContext], full_domain: bool
) -> Iterator[Diagnostic]:
    """The diagnostics of a check that no fallback refutes.

    Args:
        check: reports what iteration maps cannot prove.
        contexts: all blocks of the function, in order.
        full_domain: whether the blocks must cover their whole domains; else only their reductions are checked.
    """
    diagnostics = check(contexts)
    if not diagnostics:
        return
    unproved = dict.fromkeys(_statement_key(c) for c, _ in diagnostics)
    fused = fuse_iters(contexts)
    if any(a is not b for a, b in zip(contexts, fused, strict=True)):
        unproved_fused = {_statement_key(c) for c, _ in check(fused)}
        pairs = zip(contexts, fused, strict=True)
        proved = {_statement_key(a) for a, b in pairs if _statement_key(b) not in unproved_fused}
        unproved = {key: None for key in unproved if key not in proved}
    for key in list(unproved)[:MAX_ENUMERATED_GROUPS]:
        if _is_proved_by_enumeration([c for c in contexts if _statement_key(c) == key], contexts, full_domain):
            del unproved[key]
    yield from (diagnostic for c, diagnostic in diagnostics if _statement_key(c) in unproved)


def _statement_key(context: BlockContext) -> object:
    return statement_key(context, context.block.iters)


def _is_proved_by_enumeration(
    group: Sequence[BlockContext], contexts: Sequence[BlockContext], full_domain: bool
) -> bool:
    """Whether enumeration proves that the copies of one block cover their domain, or count each point once."""
    if match_accumulation(group[0].block.body) is not None:
        return is_counted_once(group, contexts, full_domain)
    return is_covered(group)
