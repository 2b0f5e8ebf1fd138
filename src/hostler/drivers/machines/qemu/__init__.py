"""Machines that are QEMU processes."""
