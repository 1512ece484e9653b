"""The studio: a local web page to look at runs.

studio_server.py  the application and the server
site.py           what all pages share: layout, navigation, templates, static files, errors
run_library.py    the runs of a folder, by name
live_page.py      live updates: server-sent events
run_sections.py   the parts of a run's page that the report has, too
watch/            what is known about the files of runs, kept up to date
pages/            one file per page, with its addresses
templates/        their templates; all extend site.html
static/           style sheet and scripts
"""
