"""What the rest is measured and checked against."""
