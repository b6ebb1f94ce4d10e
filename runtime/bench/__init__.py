"""`spec-edge bench`: methods against plain decoding, and against other programs, in one interleaved run."""
