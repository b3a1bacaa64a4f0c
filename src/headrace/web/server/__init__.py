"""What every page and every call passes: who asks, limits, live updates, the files of the pages.

A request comes in under one of the server's names (`hosts`), with a login (`logins`), to an
endpoint (`endpoints`), which reads bodies and queries within limits; an answer or an error with its
status (`statuses`) goes out. `live` samples what pages follow and sends it as events, `assets` has
the files of the pages. Begin with `endpoints`.
"""
