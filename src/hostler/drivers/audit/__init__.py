"""The audit log in files.

folder   the files of one data folder
chain    the format of a file, and the check for later changes
"""
