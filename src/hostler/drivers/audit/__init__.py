"""The audit log in files.

folder   the files of one data folder
chain    how a file is laid out, and whether it was changed since
"""
