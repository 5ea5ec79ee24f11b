"""Questions about a picture."""
