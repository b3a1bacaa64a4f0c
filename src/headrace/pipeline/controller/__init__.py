"""The pipeline controller: applications, their containers, the umbilical they report to."""
