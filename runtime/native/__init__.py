"""The networks of a bundle on spec-edge's own kernels for x86-64 CPUs: what the provider `native` runs.

The kernels are C (`src/`), built with the package where a compiler is at hand. A graph becomes a list of stages
(`program.py`), its matrices are packed once (`pack.py`), and a run is one call. What a row gives does not depend on how
many rows run with it, so that a draft's accepted tokens leave exactly the state that plain decoding would.
"""
