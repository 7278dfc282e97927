"""Programming problems written for placebench, one JSON object a line: see `code_tests`."""
