"""headrace export, import, replay."""
