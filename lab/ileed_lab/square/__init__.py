"""The Square experiments: the simulator and its operators, what is run, the page, figures, and published numbers."""
