"""Construction: programs from a machine's description alone, nothing measured."""
