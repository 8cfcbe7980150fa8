"""What scripts/results.py is made of: the cells that are run, their statistics, and the page about them."""
