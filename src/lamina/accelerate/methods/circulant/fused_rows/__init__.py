"""Linear layers of many rows whose spectra stay on the chip: each phase is one kernel."""
