"""Settings: one schema, read from TOML and the command line; each value has a source."""
