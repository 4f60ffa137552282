"""Who goes next: pure state, no clock, no I/O, no Triton."""
