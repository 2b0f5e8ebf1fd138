"""Repositories of artifacts.

metadata the description of an artifact, and its validation
folder   a folder, which any web server can serve
http     such a folder over HTTP, or Hostler's own server
source   checks of Python source: syntax, and marked methods
wheel    reads wheels and modules, and unpacks them safely
pack     builds a wheel from a folder: the same folder gives the same bytes

Not here: drivers that run slices (`drivers/slices`).
"""
