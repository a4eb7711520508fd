"""Racing: drivers whose skill is measured by lap times, which no model sees."""
