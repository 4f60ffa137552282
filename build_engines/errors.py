"""The one error of building."""


class BuildError(ValueError):
    """A build can't go on; the message is one line that says what is wrong and what to do."""
