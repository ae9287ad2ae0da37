"""Fused chains of contractions by MCFuser's method: tiling expressions, placement, pruning, a model, a search."""
