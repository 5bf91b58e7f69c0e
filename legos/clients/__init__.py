"""How a seat asks: the engine in this process, a server, a script."""
