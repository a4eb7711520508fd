"""Integrations: the model inside other people's training programs."""
