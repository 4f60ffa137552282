"""Running tritonserver on a composed repository: find it, choose ports, start, wait until it answers, stop."""
