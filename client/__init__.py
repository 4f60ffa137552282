"""Python client and the tvlm command line."""
