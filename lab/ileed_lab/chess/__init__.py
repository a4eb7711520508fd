"""King-and-pawn endgames: positions from raw games, what a network sees of them, and an engine to play and judge."""
