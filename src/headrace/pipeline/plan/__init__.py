"""From what a user declared to what runs where: logical plan, physical plan, packages, versions."""
