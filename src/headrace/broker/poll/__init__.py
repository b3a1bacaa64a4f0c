"""What polls are answered from before the log is read, and how stored messages become replies."""
