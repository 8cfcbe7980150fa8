"""Finished policies in games against each other: the referee, players to be judged against, ratings. Used by scripts/self_play.py."""
