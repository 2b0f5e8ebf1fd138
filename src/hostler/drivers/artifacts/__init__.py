"""Repositories of artifacts.

info     what is said of an artifact, and what may be said of one
folder   a folder, which any web server may show
http     such a folder over HTTP, or what Hostler's own server has
source   whether source is Python, and marks what can be called
wheel    what is in a wheel or a module, and unpacking it where it cannot get out
pack     a wheel of a folder: the same folder is the same bytes

Not here: what runs them (`drivers/slices`).
"""
