"""Where a bundle runs: one frozen `Target` per hardware profile, found by file name."""
