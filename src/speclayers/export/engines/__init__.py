"""One file an engine: the folder that it serves a head from."""
