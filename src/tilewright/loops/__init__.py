"""Loop IR: builder, verifier, printer, parser and the interpreter that is the oracle of every transformation."""
