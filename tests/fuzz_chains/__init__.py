"""Random chains of contractions in one kernel each: fused ones are verified and compute the same."""
