"""Middleware and routes that check requests before an endpoint handles them."""
