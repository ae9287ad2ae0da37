"""The command line: `tilewright compile | run | bench | verify | inspect | doctor`. One file per verb."""

from tilewright.cli.main import main

__all__ = ["main"]
