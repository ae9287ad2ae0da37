"""The agreement between step trees and the runtime that calls them: the words of a call's state, and the statuses.

A step tree has the parameters of a segment's main function. `workspace` is the address of the state, an array of int64
words; `weights` that of an array of addresses, with an array of weights for every segment and then the constants; and
`outputs` that of an array of words, in which the tree stores for every output the address of its data and its sizes.
"""

TREE_NAME = "tw_tree2"
"""The symbol of a step tree. It changes with this agreement: the runtime walks the steps of artifacts with another."""

STATE_WORDS = (
    "limit", "poll", "blocks", "results", "result_bytes", "workspace", "workspace_bytes", "used_bytes", "larger",
    "advise", "page_bytes",
)  # fmt: skip
"""The words of the state:

- how many iterations a loop without a trip count may have; the address of a function that asks whether to stop;
- the first block of memory that the tree has allocated: after a call, one that holds large results, which the runtime
  frees or gives to arrays;
- memory for small results and its size;
- the workspace and its size, which the runtime lends; how much of it the call has used; and, where it was too small,
  the address from `malloc` of the larger one that the tree has put in its place, which is the runtime's then;
- the address of Linux' `madvise`, or 0, and the bytes of a page.
"""

BLOCK_WORDS = ("references", "base", "next", "link", "bytes")
"""The words in front of a block's data, which begin one cache line before it: the number of references, the address
to free, the next block, the address of the word that refers to this block, and the bytes of data."""

OK = 0
TREE_FAILED = 1
"""Something is wrong; the runtime finds out what by running the steps itself."""

OK_WITH_MEMORY = 2
"""Nothing is wrong, and the state has memory for the runtime to take: large results, a larger workspace or both."""

INTERRUPTED = -1000
"""`poll` has asked to stop, and Python has an exception set."""

FIRST_LOOP = 16
"""This and the number of a loop: it has no trip count, and exceeds the limit."""

POLL_CYCLES = 1 << 27
"""Readings of the cycle counter between two polls in a loop: some 50 ms on x86-64, up to seconds on AArch64."""
