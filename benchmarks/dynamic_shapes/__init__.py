"""Models of dynamic sizes at random shapes: against a compilation for exactly that shape, and against other engines.

Modules in reading order: `models.py` has the models with their declared ranges, `shapes.py` draws the sizes,
`artifacts.py` compiles what is measured, `engine.py` is the process of one engine, `measure.py` lets engines take
turns, `tables.py` shows the results.
"""
