"""The HTTP server: an OpenAI-compatible API over any client of the kit."""
