"""What the router and its decoder channel cost a token, beside a model that answers clients itself."""
