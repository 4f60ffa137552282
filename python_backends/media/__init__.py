"""Pictures: from the bytes a client sends to UINT8 tiles.

`payload` tells raw bytes, base64 and data: URIs apart; `sniff` reads format and size from the header; `decode` makes
the tile. `worker` runs them in a worker process.
"""
