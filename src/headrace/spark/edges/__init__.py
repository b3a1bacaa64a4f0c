"""Topics between two queries: whole windows, as the rows that were published."""
