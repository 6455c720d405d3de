"""What papers published, and the same measured here: see `tables` and `running`."""
