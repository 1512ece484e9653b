"""The attacks of `checks/attacks.py`.

version.py     a version of the package, driven from outside: commands, servers, and its words
fake.py        servers of ours that the package talks to
programs.py    files that name code: adapters, recipes, models; folders that lead elsewhere
clients.py     what clients do to a server
memory.py      what grows
inputs.py      text and files that are broken or forged
money.py       judges that bill, passwords in URLs
training.py    checkpoints, full disks, interrupts
"""
