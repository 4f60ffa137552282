"""From a checkpoint and a deployment file to artifacts and a mountable Triton model repository."""

from build_engines.builder import BuildResult, Progress, build, is_stale
from build_engines.errors import BuildError

__all__ = ["BuildError", "BuildResult", "Progress", "build", "is_stale"]
