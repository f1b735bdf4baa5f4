"""One cell per method."""
