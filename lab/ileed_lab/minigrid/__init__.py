"""The MiniGrid experiments: what is run, the page about it, its figures, and the published numbers."""
