"""Overcooked: pairs of people who cook together in five kitchens."""
