"""Publishers, which load a new adapter into the engines that serve it."""
