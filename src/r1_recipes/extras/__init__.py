"""What only some recipes need. Each is imported when a recipe or a command uses it."""
