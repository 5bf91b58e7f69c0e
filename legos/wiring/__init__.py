"""Makes objects from settings; the only package that names a device."""
