"""What changes training without replacing a layer."""
