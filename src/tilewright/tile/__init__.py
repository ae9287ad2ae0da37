"""Tile programs: sketches, tile sizes, legality and lowering to schedules."""
