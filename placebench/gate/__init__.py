"""The gate: a run against a baseline, for machines that must say yes or no.

`baseline` keeps what was measured and on what, `checking` compares runs with it, `asked` reads the words for both,
`output` is for people and CI systems.
"""
