"""What a burst of pictures does to text: the served product beside a monolith."""
