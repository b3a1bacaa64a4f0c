"""Payloads as typed columns, and columns as payloads: one module per format and direction."""
