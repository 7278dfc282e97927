"""Comparing what launches measured: placements of one run, or placements of any runs and logs of any framework.

A `Side` is what launches measured, a `Comparison` holds each of several sides against the first. The placements of a
run share rounds, so that their launches are pairs, and have spans and samples as evidence, from which reasons come.

`read` reads the files of runs, `measure` makes numbers and sides of them and of logs, `pairing` and `statistics` give
ratios and their intervals, `explain` puts them into words. Start with `comparison.compare_run`.
"""
