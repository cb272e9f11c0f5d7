"""Posteriors of 80 to 2000 dimensions, on which `sa.fit(target)` is held against NUTS."""
