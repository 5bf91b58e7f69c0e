"""Files that are written atomically, and files of JSON lines."""
