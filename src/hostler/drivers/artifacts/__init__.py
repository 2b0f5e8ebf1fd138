"""Repositories of artifacts.

metadata the description of an artifact, its validation, and checks of Python source
folder   a folder, which any web server can serve
http     such a folder over HTTP, or Hostler's own server
wheel    reads wheels and modules, and unpacks them safely
pack     builds a wheel from a folder: the same folder gives the same bytes

Not here: drivers that run slices (`drivers/slices`).
"""
