"""What the placement managers remember, where they keep it, and which of them may write it."""
