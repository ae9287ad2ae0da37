"""`tilewright cache`: shows, prunes or clears the machine code that earlier compilations left in the cache folder.

TILEWRIGHT_CACHE_DIR sets the folder (default: XDG_CACHE_HOME/tilewright, ~/.cache/tilewright), TILEWRIGHT_CACHE=off
turns the cache off, `--no-cache` for one command. It prunes itself to 1 GiB.
"""

import argparse

from tilewright.cli.common import Result, Verbs, size_text
from tilewright.driver.kernel_build.code_cache import MAX_BYTES, code_cache
from tilewright.errors import OptionError, pluralize

MEGABYTE = 1 << 20


def add(verbs: Verbs) -> argparse.ArgumentParser:
    """Adds the verb to a parser."""
    parser = verbs.add_parser(
        "cache",
        help="show, prune or clear the cache of machine code",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what", choices=("show", "prune", "clear"), nargs="?", default="show", metavar="ACTION",
        help="show (default), prune, clear",
    )  # fmt: skip
    parser.add_argument(
        "--max-mb",
        type=int,
        metavar="N",
        help=f"prune: keep at most so many MiB, those used last (default: {MAX_BYTES // MEGABYTE})",
    )
    return parser


def execute(options: argparse.Namespace) -> Result:
    """Shows or changes the cache."""
    if options.max_mb is not None and options.what != "prune":
        raise OptionError(f"it has no effect on {options.what!r}", where="--max-mb", hint="leave it out")
    if options.max_mb is not None and options.max_mb < 0:
        raise OptionError(f"expected a number of at least 0, got {options.max_mb}", where="--max-mb")
    cache, is_used = code_cache(True), code_cache() is not None
    assert cache is not None
    removed = None
    if options.what == "prune":
        removed = cache.prune(MAX_BYTES if options.max_mb is None else options.max_mb * MEGABYTE)
    elif options.what == "clear":
        removed = cache.clear()
    left = cache.usage()
    data = {
        "folder": str(cache.folder), "used": is_used, "entries": left.entries, "bytes": left.bytes,
        "removed_entries": 0 if removed is None else removed.entries,
        "removed_bytes": 0 if removed is None else removed.bytes,
    }  # fmt: skip
    lines = [f"{cache.folder}: {pluralize(left.entries, 'file')}, {size_text(left.bytes)}"]
    if removed is not None:
        lines.insert(0, f"removed {pluralize(removed.entries, 'file')}, {size_text(removed.bytes)}")
    if not is_used:
        lines.append("TILEWRIGHT_CACHE turns it off")
    return Result(data, "\n".join(lines), optional=False)
