"""Schemas of request bodies and answers, for validation and for the OpenAPI page."""
