"""What bodies and answers look like, for checking and for the OpenAPI page."""
