"""Learning: policies, losses and algorithms (NumPy and TensorFlow only; never Ray)."""
