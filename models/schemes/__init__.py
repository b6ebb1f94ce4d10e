"""Weight schemes, one file each: how a checkpoint's matrices are stored in the bundle."""
