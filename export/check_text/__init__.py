"""The text that every bundle is checked on: six kinds, one file each, written for this project."""
