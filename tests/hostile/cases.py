"""All cases, by name."""

from tests.hostile import calls, defects, files, work
from tests.hostile.case import CASES

__all__ = ["CASES", "calls", "defects", "files", "work"]
