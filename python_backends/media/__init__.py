"""Pictures: from the bytes a client sends to UINT8 tiles."""
