"""Stram's REST interface: the controller's applications under the paths and names of the origin."""
