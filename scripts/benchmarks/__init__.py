"""Side-by-side measurements: raytrain and the libraries a user would pick instead, watched by one harness."""
