"""Integrations: the model inside other training programs."""
