"""headrace decode: what bytes of the three protocols say."""
