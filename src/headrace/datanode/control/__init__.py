"""What the placement managers make a data node do: ranges opened, ended, fenced, set aside."""
