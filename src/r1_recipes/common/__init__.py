"""What every step needs: errors, the terminal, processes, files, secrets, a chat client."""
