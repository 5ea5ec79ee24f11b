"""What every layer needs: errors, the terminal, processes, files, secrets, a chat client."""
