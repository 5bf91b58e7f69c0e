"""The arenas that ship with the kit; they use nothing but what ``from legos import`` gives."""
