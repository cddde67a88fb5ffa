"""Good neighbours: other libraries' models and formats."""
