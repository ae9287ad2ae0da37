"""Parsing of assembly text."""

import re


def hot_loop(text: str, instruction: str) -> list[str]:
    """The instructions of the innermost loop with the most occurrences of an instruction, from its label to its back
    edge."""
    best: list[str] = []
    lines = [line.strip() for line in text.splitlines()]
    for start, line in enumerate(lines):
        label = re.fullmatch(r"(\.LBB\w+):.*", line)
        if label is None:
            continue
        for end in range(start + 1, len(lines)):
            if re.match(r"\.LBB\w+:", lines[end]):
                break
            if re.match(rf"(j\w+|b\.?\w*|cb\w+)\s.*{re.escape(label[1])}$", lines[end]):
                body = [x for x in lines[start + 1 : end] if x and not x.startswith((".", "#", "//"))]
                if sum(instruction in x for x in body) > sum(instruction in x for x in best):
                    best = body
                break
    return best
