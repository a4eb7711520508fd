"""Data of real people: how expertise by the model compares with what is known of them."""
