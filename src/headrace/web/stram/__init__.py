"""Stram's REST interface: the controller's applications under the paths and names of Apache Apex.

Requests of Apex's clients come in below `/ws/v2/stram`; objects with the origin's names (`types`)
go out, made by pure functions (`views`) from the controller's view of an application. `routes`
lists the paths, most of which lead to the handlers of `/api/v1/pipelines`. Begin there.
"""
