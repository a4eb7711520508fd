"""Integrations with other programs: robomimic, experiment loggers, and the Hugging Face hub."""
