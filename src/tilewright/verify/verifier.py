"""The verifier: proves that a function of the loop IR is well-formed, in bounds, race-free and complete.

Checked in this order; the first group with a problem ends the verification and reports all of its problems:
  * structure (`well_formed.py`): unique names, sequences in normal form, declared variables and buffers, scopes;
  * types (`well_formed.py`): stored values have the buffer's type, operands agree, indices and sizes are int64,
    conditions bool;
  * conditions of branches (`well_formed.py`): all lanes of a vectorized loop take one arm;
  * overflow (`index_overflow.py`): numbers computed from literals and loop variables stay below 2^62;
  * sums in registers (`promoted_sums.py`): those that are copies of elements of another buffer are renamed to these;
  * branches (`merge_copies.py`): the arms of every branch are copies of one statement, so that all further checks are
    those of a program without branches;
  * order (`well_formed.py`): internal buffers are written before they are read;
  * memory scopes (`memory_scopes.py`): register buffers have literal shapes and are indexed by literals and by
    variables of unrolled, vectorized and vthread loops;
  * stack (`memory_scopes.py`): the private buffers of threads on GPU axes fit a limit;
  * divisors (`nonzero_divisors.py`): sizes that divide an index are nonzero where the index is computed;
  * domains (`domains.py`): bindings stay in the domains of their variables, accesses in their buffers;
  * prefetches (`prefetch_safety.py`): their addresses are safe to compute;
  * GPU launches (`gpu_launch.py`): loops on GPU axes form grids of blocks of threads;
  * races (`races.py`): iterations of concurrent loops neither write the same element nor read each other's;
  * coverage (`coverage.py`): the blocks that write a parameter cover their domains; reductions count every point once,
    start from an initial value, and are not overwritten before they are read.

Everything is proved, nothing is sampled: an accepted function has these properties for all sizes in range. The proofs
are sound but incomplete: a correct program with an unusual binding may be rejected. Not checked: that every single
element of an internal buffer is written before it is read (only that an earlier block writes the buffer).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

from tilewright.errors import VerifyError
from tilewright.loops.block_context import BlockContext
from tilewright.loops.empty_reductions import initialize_empty_reductions
from tilewright.loops.ir import Block, Func, If, walk
from tilewright.loops.printer import show_stmt
from tilewright.verify import (
    coverage,
    domains,
    gpu_launch,
    index_overflow,
    memory_scopes,
    nonzero_divisors,
    prefetch_safety,
    races,
    well_formed,
)
from tilewright.verify.diagnostics import Diagnostic
from tilewright.verify.merge_copies import merge_copies
from tilewright.verify.promoted_sums import with_sums_in_memory
from tilewright.verify.trimmed_loops import with_whole_loops


def verify(func: Func, *, registers: bool = True) -> None:
    """Verifies a function.

    Args:
        func: the function.
        registers: whether the indices of register buffers must already be literal after unrolling; False between the
            steps of a schedule.

    Raises:
        VerifyError: lists all problems of the first check that fails, with the offending loops or blocks.
    """
    as_executed = (
        lambda func=func: well_formed.find_structure_errors(func),
        lambda func=func: well_formed.find_type_errors(func),
        lambda func=func: well_formed.find_lane_conditions(func),
        lambda func=func: index_overflow.find_overflows(func),
    )
    _check(func, as_executed)
    func = with_whole_loops(merge_copies(with_sums_in_memory(func)))
    contexts = [BlockContext.of(s, enclosing) for s, enclosing in walk(func.body) if isinstance(s, Block)]

    @cache
    def executed() -> tuple[BlockContext, ...]:
        return (*contexts, *_empty_reduction_blocks(func))

    groups = (
        lambda: _find_branches(func),
        lambda: well_formed.find_reads_before_writes(func),
        lambda: memory_scopes.find_memory_scope_errors(func, contexts, registers),
        lambda: memory_scopes.find_stack_overflow(func, contexts),
        lambda: (f for context in executed() for f in nonzero_divisors.find_zero_divisors(context)),
        lambda: (f for context in executed() for f in domains.find_domain_errors(context)),
        lambda: prefetch_safety.find_unsafe_prefetches(func),
        lambda: gpu_launch.find_launch_errors(func, contexts),
        lambda: races.find_races(func, contexts),
        lambda: coverage.find_coverage_errors(func, contexts),
    )
    _check(func, groups)


def _check(func: Func, groups: Iterable[Callable[[], Iterable[Diagnostic]]]) -> None:
    """Reports the first group of checks with a problem."""
    for group in groups:
        diagnostics = list(dict.fromkeys(group()))
        if diagnostics:
            raise _to_error(func, diagnostics)


def _find_branches(func: Func) -> Iterator[Diagnostic]:
    """Branches whose arms are not copies of one statement."""
    for s, _ in walk(func.body):
        if isinstance(s, If):
            what = "the arms of a branch are not proved to be copies of one statement"
            hint = "express the condition as predicates of blocks"
            yield Diagnostic(f"branch on {s.condition}", what, show_stmt(s), hint)


def _empty_reduction_blocks(func: Func) -> Iterator[BlockContext]:
    """The blocks that initialise empty reductions, which the interpreter and native code execute, too."""
    original = {id(s) for s, _ in walk(func.body)}
    extended = initialize_empty_reductions(func)
    if extended is not func:
        for s, enclosing in walk(extended.body):
            if isinstance(s, Block) and id(s) not in original:
                yield BlockContext.of(s, enclosing)


def _to_error(func: Func, diagnostics: Sequence[Diagnostic]) -> VerifyError:
    def text(d: Diagnostic) -> str:
        snippet = "".join(f"\n    {line}" for line in d.snippet.splitlines())
        return d.what + snippet

    if len(diagnostics) == 1:
        only = diagnostics[0]
        return VerifyError(text(only), where=f"func {func.name!r}, {only.where}", hint=only.hint)
    lines = "".join(f"\n  {d.where}: {text(d)}{d.hint and '; '}{d.hint}" for d in diagnostics)
    return VerifyError(f"{len(diagnostics)} problems{lines}", where=f"func {func.name!r}")
