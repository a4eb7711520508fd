"""The laboratory: what reproduces the paper and compares with other methods, beside the library `ileed`."""
