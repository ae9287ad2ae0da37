"""Cost models that are learned from measurements, and the features of programs that they learn from."""
