"""Reading a run and comparing its placements: what was measured, what differs, and why.

From the files of a run (`run`) over the steps of a launch cut into segments (`steps`) and the device samples joined to
them (`attribution`) to estimates and ratios (`statistics`, `comparison`), and from those to words (`reasons`,
`caveats`). Start with `comparison.compare_run`.
"""
