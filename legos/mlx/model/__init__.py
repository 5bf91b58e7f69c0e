"""One module tree: loaded, adapted, run, and owned by one thread."""
