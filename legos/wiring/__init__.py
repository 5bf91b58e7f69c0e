"""The only place that turns settings into objects and names a device."""
