"""Checkpoint to bundle: `spec-export`."""
