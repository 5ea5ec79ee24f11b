"""Response formats and prompts."""
