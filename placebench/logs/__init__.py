"""Readers of training logs: one module a format, one registry, text to the same tidy frame.

A tidy frame has the columns launch (str), step (int), metric (str) and value (float64). To add a format, write a
module with a `LogFormat`, with a `Dialect` where its framework is new, and list it in `registry`. How a console log
prints its steps is said by a table: `StepDicts` for one dict in a line, `StepBlocks` for a block of lines.
"""
