"""What all benchmarks share: isolated processes, circumstances of a measurement, tables."""
