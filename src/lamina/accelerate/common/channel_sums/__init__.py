"""Sums over all rows of a tensor, as the gradient of a bias is."""
