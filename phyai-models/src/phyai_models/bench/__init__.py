"""``phyai bench``: how long a model takes here, stage by stage, beside its floor and a plain implementation."""
