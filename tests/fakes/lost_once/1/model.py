"""A fake stage that can't be loaded as long as there is a file `lose` in its folder; each try takes the file away."""

from pathlib import Path


class TritonPythonModel:
    def initialize(self, args):
        order = Path(args["model_repository"]) / "lose"
        if order.exists():
            order.unlink()
            raise RuntimeError("lost while it was loaded")

    def execute(self, requests):
        raise AssertionError("no test asks it anything")
