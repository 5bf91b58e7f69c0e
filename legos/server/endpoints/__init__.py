"""What is answered: one file for each group of endpoints, and what they share."""
