"""The command line `headrace`: noun, then verb.

Words of a shell come in; tables or JSON go to standard output, messages to standard error, and an
exit code says whether the work was done. `command_table.py` names every command of the first level
and imports the module of a command when the command is called, so nothing heavy may be imported at
the top of a module that has commands. `declare.py` says how a command is written, `connection.py`
chooses the server and logs in, `control_api.py` calls the control plane, `output.py` prints. A
command that has a folder of its own stands in the `__init__.py` of the folder. Begin with
`main.py`.
"""
