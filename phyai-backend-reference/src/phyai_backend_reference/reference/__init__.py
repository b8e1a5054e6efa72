"""``reference.<op>``: every op in its clearest form. Right before fast."""
