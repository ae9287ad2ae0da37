"""Running generated code to learn how fast it is: the only layer, with the benchmarks, that looks at a clock."""
