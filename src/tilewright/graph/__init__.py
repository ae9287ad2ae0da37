"""The graph IR of a model: passes, lowering to tensor expressions, fusion into kernels, layouts, memory planning."""
