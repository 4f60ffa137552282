"""`python -m client`: the same as `tvlm`."""

from client.cli import main

main()
