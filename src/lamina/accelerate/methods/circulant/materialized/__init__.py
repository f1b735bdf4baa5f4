"""Layers with materialized circulant blocks: for few rows, in split fp16, and for the vendor library."""
