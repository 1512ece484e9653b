"""The jobs of a study, each in a process of its own.

study_job.py      one job: a run of a recipe, or another command
job_processes.py  the processes of jobs: forks of a server, or one interpreter each
job_server.py     the process whose forks are the jobs
"""
