"""Hanabi: people who play with one of three computer players."""
