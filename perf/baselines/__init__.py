"""What the product is measured against: other arrangements of the same engines, weights and total cores."""
