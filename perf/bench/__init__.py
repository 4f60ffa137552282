"""The proof: the product and its alternatives under the same workloads, as a report with plots."""
