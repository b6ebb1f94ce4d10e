"""`python -m spec_edge.export`: the same as `spec-export`."""

from spec_edge.export.cli import main

main()
