"""King-and-pawn endgames: positions from games, their encoding for a network, and an engine to play and judge."""
