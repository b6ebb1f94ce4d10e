"""Lowerings, one file each: which operators write down norms, attention and the cache."""
