"""Building of kernels: a task becomes scheduled loops and object code, with worker processes, a cache and records."""
