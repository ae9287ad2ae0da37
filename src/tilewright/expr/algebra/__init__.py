"""Symbolic algebra over index expressions: normal forms, bounds, division, proofs."""
