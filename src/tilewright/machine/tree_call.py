"""The agreement between step trees and the runtime that calls them: the words of a call's state, and the statuses.

A step tree has the parameters of a segment's main function. `workspace` is the address of the state, an array of int64
words; `weights` that of an array of addresses, with an array of weights for every segment and then the constants; and
`outputs` that of an array of words, in which the tree stores for every output the address of its data and its sizes.
"""

STATE_WORDS = ("limit", "poll", "blocks", "results", "result_bytes", "workspace", "workspace_bytes")
"""The words of the state: how many iterations a loop without a trip count may have; the address of a function that
asks whether to stop; the first block of memory that the tree has allocated; memory for small outputs and its size; and
the workspace with its size. Blocks and workspace are the tree's; the workspace is from `malloc`, and kept for the next
call."""

OK = 0
TREE_FAILED = 1
"""Something is wrong; the runtime finds out what by running the steps itself."""

INTERRUPTED = -1000
"""`poll` has asked to stop, and Python has an exception set."""

FIRST_LOOP = 16
"""This and the number of a loop: it has no trip count, and exceeds the limit."""

POLL_CYCLES = 1 << 27
"""Readings of the cycle counter between two polls in a loop: some 50 ms on x86-64, up to seconds on AArch64."""
