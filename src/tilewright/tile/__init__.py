"""Tile programs: how a loop nest is cut over the levels of a machine, as numbers that can be scored in bulk."""
