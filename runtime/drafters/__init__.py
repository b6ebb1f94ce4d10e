"""Drafting methods, one file each, found by file name."""
