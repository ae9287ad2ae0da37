"""`tilewright cache`: shows, prunes or clears what earlier compilations left in the cache folder: machine code of
kernels, and whole compilations without the weights that are the model's own.

TILEWRIGHT_CACHE_DIR sets the folder (default: XDG_CACHE_HOME/tilewright, ~/.cache/tilewright), TILEWRIGHT_CACHE=off
turns the cache off, `--no-cache` for one command. It prunes itself to 1 GiB of kernels and 512 MiB of models.
"""

import argparse
from typing import Any

from tilewright.cli.common import Result, Verbs, size_text
from tilewright.driver.kernel_build.code_cache import MAX_BYTES, CodeCache, code_cache
from tilewright.driver.model_cache.model_cache import MAX_BYTES as MAX_MODEL_BYTES
from tilewright.driver.model_cache.model_cache import ModelCache, cache_of_models
from tilewright.errors import OptionError, pluralize

MEGABYTE = 1 << 20


def add(verbs: Verbs) -> argparse.ArgumentParser:
    """Adds the verb to a parser."""
    parser = verbs.add_parser(
        "cache",
        help="show, prune or clear the cache of machine code and models",
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
        help=f"prune: keep at most so many MiB of each kind, those used last (default: {MAX_BYTES // MEGABYTE} of code,"
        f" {MAX_MODEL_BYTES // MEGABYTE} of models)",
    )
    return parser


def _apply(cache: CodeCache | ModelCache, options: argparse.Namespace) -> dict[str, Any]:
    """Shows or changes one of the caches: its folder, what is left, and what was removed."""
    removed = None
    if options.what == "prune":
        removed = cache.prune() if options.max_mb is None else cache.prune(options.max_mb * MEGABYTE)
    elif options.what == "clear":
        removed = cache.clear()
    left = cache.usage()
    return {
        "folder": str(cache.folder), "entries": left.entries, "bytes": left.bytes,
        "removed_entries": 0 if removed is None else removed.entries,
        "removed_bytes": 0 if removed is None else removed.bytes,
    }  # fmt: skip


def execute(options: argparse.Namespace) -> Result:
    """Shows or changes the cache."""
    if options.max_mb is not None and options.what != "prune":
        raise OptionError(f"it has no effect on {options.what!r}", where="--max-mb", hint="leave it out")
    if options.max_mb is not None and options.max_mb < 0:
        raise OptionError(f"expected a number of at least 0, got {options.max_mb}", where="--max-mb")
    cache, is_used = code_cache(True), code_cache() is not None
    assert cache is not None
    of_code, of_models = (_apply(c, options) for c in (cache, cache_of_models(cache)))
    data = {**of_code, "used": is_used, "models": of_models}
    lines = [
        f"{d['folder']}: {pluralize(d['entries'], 'file')}, {size_text(d['bytes'])}" for d in (of_code, of_models)
    ]
    if options.what != "show":
        files, size = (of_code[key] + of_models[key] for key in ("removed_entries", "removed_bytes"))
        lines.insert(0, f"removed {pluralize(files, 'file')}, {size_text(size)}")
    if not is_used:
        lines.append("TILEWRIGHT_CACHE turns it off")
    return Result(data, "\n".join(lines), optional=False)
