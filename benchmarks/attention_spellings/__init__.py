"""One attention in the spellings of different exporters: the same kernels, and times within a few percent."""
