"""Images of QEMU machines: kept by their content, added from files and URLs, built from packages."""
