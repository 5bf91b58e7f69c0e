"""How a new adapter reaches the engines that serve it."""
