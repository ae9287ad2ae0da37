"""Loop IR: nodes, builder, printer, parser, lowering to loops, and the interpreter, the oracle of transformations."""
