"""The policy plane: policies behind a network, and the client that asks them."""
