"""What every page and every API call passes: who asks, limits, files of the pages, live updates."""
