"""Chains of contractions in a partitioned program: which there are, the kernels that they become, and which are taken."""
