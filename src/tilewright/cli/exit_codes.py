"""Exit codes of the command; `tilewright --help` lists them."""

USER_ERROR, USAGE_ERROR, VERIFICATION_FAILED, INTERNAL_ERROR, INTERRUPTED = 1, 2, 3, 70, 130
