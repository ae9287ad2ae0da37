"""A worker's program that answers any request at once with more than a pipe takes."""

from collections.abc import Mapping
from typing import Any

from tilewright.measure.worker import Reply, main

ANSWER_BYTES = 1 << 20


def answer(request: Mapping[str, Any]) -> Reply:
    return {"value": [request.get("number"), "x" * ANSWER_BYTES]}


if __name__ == "__main__":
    main({"set up": answer, "echo": answer})
