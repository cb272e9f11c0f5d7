"""How right are the means and spreads of a fit: a suite of posteriors with trusted references."""
