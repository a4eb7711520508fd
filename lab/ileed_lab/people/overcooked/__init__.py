"""Overcooked: pairs of demonstrators who cook together in five kitchens."""
