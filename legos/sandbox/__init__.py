"""Call functions of strangers in processes that are killed at a limit."""
