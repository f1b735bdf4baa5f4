"""Products of spectra over windows whose pixels, with their halo, lie in shared memory."""
