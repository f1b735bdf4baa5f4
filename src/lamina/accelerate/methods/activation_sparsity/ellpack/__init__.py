"""Products over non-zeros stored as ELLPACK-DIB (Spartan, section 6.3)."""
