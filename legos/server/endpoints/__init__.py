"""The endpoints, one file for each group, and the code that they share."""
