"""Publishing windows once and for all: staged first, then moved into their topics."""
