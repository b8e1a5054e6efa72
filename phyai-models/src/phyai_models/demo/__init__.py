"""The demonstration: a small π0.5 checkpoint of our own making, on real photographs, under two policies."""
