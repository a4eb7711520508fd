"""Real people's data: how expertise by the model compares with what is known of them."""
