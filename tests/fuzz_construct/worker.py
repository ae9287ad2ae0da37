"""One process that checks operators for a campaign (`tests.fuzz.serving`)."""

from tests.fuzz.serving import serve
from tests.fuzz_construct.check import check, random_case, understood

if __name__ == "__main__":
    serve(random_case, understood, check)
