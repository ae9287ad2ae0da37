"""The verifier: proves that functions of the loop IR are well-formed, race-free and complete."""
