"""Hanabi: demonstrators who play with one of three computer players."""
