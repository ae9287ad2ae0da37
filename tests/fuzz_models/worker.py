"""One process that checks models for a campaign (`tests.fuzz.serving`).

Args: the first and the last version of the operator set that are drawn.
"""

import sys
from functools import partial

from tests.fuzz.serving import serve
from tests.fuzz_models.check import OPSETS, check, random_case, understood

if __name__ == "__main__":
    opsets = (int(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) == 3 else OPSETS
    serve(partial(random_case, opsets=opsets), understood, check)
