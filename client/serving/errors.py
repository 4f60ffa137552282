"""What stops `tvlm`."""


class ServeError(Exception):
    """Serving can't start or go on; the message is one line that says what to do."""
