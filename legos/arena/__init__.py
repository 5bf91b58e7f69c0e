"""Tasks, tables and seats: how a play is written and played."""
