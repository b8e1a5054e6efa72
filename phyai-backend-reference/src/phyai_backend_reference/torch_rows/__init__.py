"""``torch.*``: torch's own library calls."""
