"""One file a claim; each uses lamina itself and writes its rows to ``benchmarks/results``."""
