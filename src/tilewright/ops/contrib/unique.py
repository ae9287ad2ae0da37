"""The different elements of a tensor."""

from tilewright.ops.contrib import CONTRIB
from tilewright.ops.definition import Definition, OpValue, operator
from tilewright.ops.selection import unique_elements


@operator("Unique", domain=CONTRIB)
def contrib_unique(d: Definition) -> tuple[OpValue, ...]:
    """The different elements in the order in which they occur first, which of them each element is, and how often each
    occurs."""
    values, _, inverse, counts = unique_elements(d, None, 0)
    return values, inverse, counts
