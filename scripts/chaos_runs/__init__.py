"""What scripts/chaos.py does to runs, and how it finds out whether anything was lost."""
