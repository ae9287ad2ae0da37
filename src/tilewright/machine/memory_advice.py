"""Advice to Linux about memory: the numbers of `madvise`, which the runtime and generated code give."""

HUGEPAGE, POPULATE_READ, POPULATE_WRITE = 14, 22, 23
"""Linux' MADV_HUGEPAGE, MADV_POPULATE_READ, MADV_POPULATE_WRITE."""

HUGE_PAGE_BYTES = 2 << 20
"""Bytes of a huge page on x86-64, and on AArch64 with pages of 4 KiB."""
