"""Layers of an encoder whose norms are part of the products around them."""
