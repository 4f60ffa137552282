"""From a checkpoint and a deployment file to artifacts and a mountable model repository."""
