"""Chains of contractions in a partitioned program: which there are, what they become, and which are taken."""
