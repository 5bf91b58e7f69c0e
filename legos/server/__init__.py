"""The HTTP server: OpenAI's interface over any client of the kit."""
