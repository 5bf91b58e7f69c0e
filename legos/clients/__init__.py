"""The clients of seats: of an engine in this process, and of a server."""
