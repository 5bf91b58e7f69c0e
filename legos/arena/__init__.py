"""Tasks, tables and seats: how a play is written, played and evaluated."""
