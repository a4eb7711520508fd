"""The MiniGrid experiments: what is run, the page and its sections, the figures, and the published numbers."""
