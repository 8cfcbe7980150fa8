"""Worlds: the batched multi-agent environment protocol and its adapters (NumPy and Gymnasium only)."""
