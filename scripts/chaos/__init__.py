"""What can happen to a run, done on purpose. Used by scripts/chaos.py."""
