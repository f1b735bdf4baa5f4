"""Products with circulant blocks written out, for few rows and for the vendor library."""
