"""Stand-ins for hardware and engines; never used outside the tests."""
