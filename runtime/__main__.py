"""`python -m spec_edge.runtime`: the same as `spec-edge`."""

from spec_edge.runtime.cli import main

main()
